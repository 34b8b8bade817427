"""The whole engine on a GPU: every backend, weight and cache format, and what deterministic mode promises."""

import pytest
import torch
from text.engine.gpu_models import GREEDY, TINY, gpu, prompts

from genwright import LLM
from genwright.text.ops.step import Chunk

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cpu_tokens() -> list[list[int]]:
    llm = LLM(TINY, device="cpu", dtype="float32", max_context=1024)
    return [result.ids for result in llm.generate(prompts(5), GREEDY)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"backend": "torch"},
        {"graph": False},
        {"deterministic": True},
        {"backend": "inductor"},
        {"draft": "prompt-lookup"},
    ],
    ids=str,
)
def test_float32_greedy_tokens_are_the_cpu_references(settings, cpu_tokens):
    llm = gpu(**settings)
    assert [result.ids for result in llm.generate(prompts(5), GREEDY)] == cpu_tokens, "together"
    assert [llm.generate([prompt], GREEDY)[0].ids for prompt in prompts(5)] == cpu_tokens, "one by one"


def test_windows_and_their_freed_pages_give_the_cpu_references_tokens():
    """Gemma 3: five local layers to a global one, past the window of 512 tokens."""
    text = [token for prompt in prompts(40) for token in prompt]
    cpu, cuda = (
        LLM("random:gemma-3-270m,layers=6", device=device, dtype="float32", max_context=2048, **memory)
        for device, memory in (("cpu", {}), ("cuda", {"gpu_mem": 4}))
    )
    texts = [text[:1900], text[7:600], text[:1200]]
    assert [r.ids for r in cuda.generate(texts, GREEDY)] == [r.ids for r in cpu.generate(texts, GREEDY)]


@pytest.mark.parametrize("quant", [None, "int8", "int4", "int4:g64:asym", "fp8"])
def test_formats_agree_with_the_torch_backend(quant):
    fused, plain = gpu("bfloat16", quant=quant), gpu("bfloat16", quant=quant, backend="torch")
    ids = list(range(100, 300))
    for count in (1, 5, 30, 200):  # one token, few, a chunk, and one whose weights are unpacked before the product
        ours, theirs = fused.logits(ids[:count]), plain.logits(ids[:count])
        assert (ours - theirs).norm() < 0.03 * theirs.norm()


@pytest.mark.parametrize("kv", ["int8", "int4"])
def test_cache_formats_agree_with_the_torch_backend(kv):
    fused, plain = gpu(kv=kv), gpu(kv=kv, backend="torch")
    for ids in prompts(3, 200):
        ours, theirs = fused.logits(ids), plain.logits(ids)
        assert (ours - theirs).norm() < 2e-3 * theirs.norm()
    ours, theirs = (llm.generate(prompts(4), GREEDY) for llm in (fused, plain))
    assert sum(a.ids == b.ids for a, b in zip(ours, theirs, strict=True)) >= 3  # a tie may fall otherwise


@pytest.mark.parametrize("quant", [None, "int4"])
def test_deterministic_logits_are_bitwise_alone_in_a_batch_and_chunked(quant):
    llm = gpu("bfloat16", quant=quant, deterministic=True)
    texts = prompts(16, 120)
    executor, page = llm.engine.executor, 0
    pages = []
    for text in texts:
        count = -(-len(text) // 64)
        pages.append([list(range(page, page + count))])
        page += count
    order = sorted(range(16), key=lambda i: len(texts[i]))
    together = executor.run([Chunk(texts[i], 0, pages[i]) for i in order])
    for row, i in enumerate(order):
        alone = executor.run([Chunk(texts[i], 0, pages[i])])
        assert torch.equal(alone[0], together[row]), "alone"
        for start in range(0, len(texts[i]), 17):
            chunked = executor.run([Chunk(texts[i][start : start + 17], start, pages[i])])
        assert torch.equal(chunked[0], together[row]), "chunked"
        for start in range(max(0, len(texts[i]) - 3), len(texts[i])):
            stepped = executor.run([Chunk(texts[i][start : start + 1], start, pages[i])])
        assert torch.equal(stepped[0], together[row]), "token by token"


def gemma(backend, dtype):
    """Gemma 3's shape, whose layers have page tables of two kinds."""
    options = {"device": "cuda", "dtype": dtype, "max_context": 1024, "gpu_mem": 8, "backend": backend}
    return LLM("random:gemma-3-270m,layers=7", **options)


def beyond_the_window():
    """Token ids of a prompt that is longer than Gemma 3's window of 512."""
    return [token for text in prompts(60) for token in text][:620]


def test_layers_with_and_without_a_window_have_page_tables_of_their_own():
    ours, theirs, ids = gemma("triton", "float32"), gemma("torch", "float32"), beyond_the_window()
    assert (ours.logits(ids) - theirs.logits(ids)).norm() < 1e-3 * theirs.logits(ids).norm()
    assert ours.generate([ids], GREEDY)[0].ids == theirs.generate([ids], GREEDY)[0].ids


def test_windows_in_bfloat16_are_as_far_from_float32_as_plain_pytorch_is():
    ids = beyond_the_window()
    exact = gemma("torch", "float32").logits(ids)
    ours, theirs = ((gemma(backend, "bfloat16").logits(ids) - exact).norm() for backend in ("triton", "torch"))
    assert ours < 1.2 * theirs
