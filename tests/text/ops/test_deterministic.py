"""Deterministic mode: the same bits alone, in a batch and in chunks."""

import random
from itertools import product

import pytest
import torch
from conftest import FULL_SIZE
from text.engine.setup import engine_of
from text.families import make

from genwright import LLM
from genwright.text.ops.cpu_ops import CpuOps
from genwright.text.ops.step import Chunk
from genwright.text.ops.torch_ops import TorchOps

ROOM = 8  # pages for each sequence
FAMILIES = ("llama-mha", "mistral", "galactica", "qwen2-moe", "deepseek-v3")
DTYPES = ("float32", "bfloat16")
CASES = [(*case, None) for case in (*product(FAMILIES[:2], DTYPES), ("qwen2-moe", "float32"))]
CASES += [
    ("deepseek-v3", "bfloat16", None),
    ("llama-mha", "float32", "int4:g32:asym"),
    ("qwen2-moe", "bfloat16", "int8"),
]
if FULL_SIZE:
    names = (*FAMILIES, "llama", "qwen2", "qwen3", "opt-350m", "mixtral", "deepseek-v2")
    CASES = list(product(names, DTYPES, (None, "int8", "int4", "fp8")))


def tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(3, 199) for _ in range(count)]


def logits_of(executor, sequence: list[int], chunk: int, others: list[list[int]] = (), place: int = 0) -> torch.Tensor:
    """Logits after every token of a sequence, computed in chunks, at index `place` in a batch of other sequences."""
    rows = []
    for start in range(0, len(sequence), chunk):
        parts = [(text, 0) for text in others]
        parts.insert(place, (sequence[start : start + chunk], start))
        chunks = [
            Chunk(part, first, [range(lane * ROOM, (lane + 1) * ROOM)], len(part))
            for lane, (part, first) in enumerate(parts)
        ]
        before = sum(len(part) for part, _ in parts[:place])
        rows.append(executor.run(chunks)[before : before + len(parts[place][0])])
    return torch.cat(rows)


@pytest.mark.parametrize(("family", "dtype", "quant"), CASES)
def test_bits_do_not_depend_on_batch_or_chunk(family, dtype, quant, tmp_path):
    make(family, tmp_path)
    llm = LLM(tmp_path, device="cpu", dtype=dtype, quant=quant)
    executor = engine_of(llm, pages=17 * ROOM, max_batch=17, max_tokens=4096, deterministic=True).executor
    rng = random.Random(1)
    sequence = tokens(rng, 150)
    others = [tokens(rng, rng.randint(1, 200 if FULL_SIZE else 90)) for _ in range(16)]
    whole = logits_of(executor, sequence, len(sequence))
    assert not whole.isnan().any()
    for chunk in (1, 64):
        assert torch.equal(logits_of(executor, sequence, chunk), whole), f"alone, in chunks of {chunk}"
    for chunk, place in ((150, 0), (150, 16), (64, 5)):
        beside = logits_of(executor, sequence, chunk, others, place)
        assert torch.equal(beside, whole), f"number {place} of 17, in chunks of {chunk}"
    decoding = [text[:1] for text in others]
    assert torch.equal(logits_of(executor, sequence, 1, decoding, 9), whole), "token by token among decoding sequences"


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_odd_widths_and_thread_counts(threads, tmp_path):
    """Sizes that are no multiple of a vector or tile, where a library's loops use other code for the remainder."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ops = CpuOps(deterministic=True)
        for width, out in ((37, 101), (576, 1536), (1536, 577)):
            weights = {"w": torch.randn(out, width), "w.bias": torch.randn(out)}
            x = torch.randn(515, width)
            full, activated = ops.linear(x, weights, "w"), ops.activate(x, "silu")
            for first, count in ((0, 1), (3, 16), (100, 33), (514, 1), (17, 400)):
                part = x[first : first + count]
                assert torch.equal(ops.linear(part, weights, "w"), full[first : first + count])
                assert torch.equal(ops.activate(part, "silu"), activated[first : first + count])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_agrees_with_the_reference(family, tmp_path):
    make(family, tmp_path)
    llm = LLM(tmp_path, device="cpu", dtype="float32")
    executor = engine_of(llm, pages=ROOM, max_batch=1, max_tokens=512).executor
    sequence = tokens(random.Random(2), 300)
    executor.ops = TorchOps()
    expected = logits_of(executor, sequence, 300)
    executor.ops = CpuOps(deterministic=True)
    error = (logits_of(executor, sequence, 300) - expected).norm() / expected.norm()
    assert error < 1e-5
