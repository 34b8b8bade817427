"""GGUF files of every type on a GPU: weights stay packed, and tokens are those of the dequantized weights on a CPU."""

from pathlib import Path

import pytest
import torch
from quant.random_blocks import QUANTIZED
from text.checkpoints.random_gguf import write_random_gguf

from genwright import LLM, SamplingParams
from genwright.quant.packed import Packed

pytestmark = pytest.mark.gpu
GREEDY = SamplingParams(max_new_tokens=12, ignore_eos=True)
PROMPTS = [[5, 9, 200, 7], [1], list(range(3, 150)), [11] * 70]
GROUPED = [[i, 7 + i, 40, 41] for i in range(12)]


def k_medium(name: str) -> str:
    """The types of a Q4_K_M file."""
    return "Q6_K" if "attn_v" in name or "ffn_down" in name or "token_embd" in name else "Q4_K"


def cuda(path: Path, **settings) -> LLM:
    return LLM(path, device="cuda", dtype="float32", max_context=256, gpu_mem=2, **settings)


def check(path: Path, prompts: list[list[int]], **settings) -> None:
    ours = cuda(path, **settings)
    theirs = LLM(path, device="cpu", dtype="float32", max_context=256, backend="torch")
    outer, blocks = ours.engine.executor.model.outer, ours.engine.executor.model.blocks
    matrices = ("embed", "head"), ("qkv", "out")
    assert all(isinstance(outer[name], Packed) for name in matrices[0])
    assert all(isinstance(block[name], Packed) for block in blocks for name in matrices[1])
    together = ours.generate(prompts, GREEDY)
    for prompt, result in zip(prompts, together, strict=True):
        for ids in (result.ids, ours.generate([prompt], GREEDY)[0].ids):
            logits = theirs.logits(prompt + ids)[len(prompt) - 1 : -1]
            best, chosen = logits.amax(dim=1), logits.gather(1, torch.tensor(ids)[:, None])[:, 0]
            assert (chosen >= best - 2e-3 * logits.std()).all()  # the same tokens, unless two are as good
    for count in (1, 8, 64, 140):
        ids = PROMPTS[2][:count]
        want = theirs.logits(ids)
        assert (ours.logits(ids).cpu() - want).norm() < 2e-3 * want.norm()


@pytest.mark.parametrize("name", QUANTIZED)
def test_every_types_tokens_are_the_cpus(name, tmp_path):
    check(write_random_gguf(tmp_path / "model.gguf", lambda _: name), PROMPTS)


@pytest.mark.parametrize("settings", [{}, {"graph": False}, {"deterministic": True}, {"offload": "50,50,100,0,100,0"}])
def test_a_file_of_two_types_with_a_tied_head(settings, tmp_path):
    check(write_random_gguf(tmp_path / "model.gguf", k_medium, tied=True), PROMPTS, **settings)


@pytest.mark.parametrize("settings", [{}, {"deterministic": True}])
def test_a_mixture(settings, tmp_path):
    check(write_random_gguf(tmp_path / "model.gguf", k_medium, experts=4), PROMPTS + GROUPED, **settings)


def test_quant_and_the_torch_backend(tmp_path):
    path = write_random_gguf(tmp_path / "model.gguf", k_medium)
    logits = cuda(path).logits(PROMPTS[2])
    for settings in ({"backend": "torch"}, {"backend": "torch", "quant": "keep"}):
        assert (cuda(path, **settings).logits(PROMPTS[2]) - logits).norm() < 2e-3 * logits.norm()
    assert torch.isfinite(cuda(path, quant="int8").logits(PROMPTS[2])).all()
