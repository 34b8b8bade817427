"""RoPE's scalings against transformers, at lengths on both sides of what a model was trained for."""

import pytest
import torch
from text.families import SCALED, make, reference_logits

from genwright import LLM

# Tokens of context that the model is loaded with, and of the prompt. The trained context of longrope is 128, of the
# others 512; dynamic frequencies are transformers' where the prompt fills the context.
LENGTHS = {
    "yarn, not truncated": [(None, 70)],
    "dynamic": [(None, 70), (500, 500), (576, 576), (601, 601)],
    "longrope": [(128, 100), (None, 140)],
    "longrope, with factors": [(100, 100), (200, 140)],
    "proportional": [(None, 70)],
}


@pytest.mark.parametrize("name", SCALED)
def test_logits_equal_transformers(name, tmp_path):
    theirs = make(name, tmp_path)
    prompt = torch.randint(3, 199, (601,), generator=torch.Generator().manual_seed(0)).tolist()
    for context, length in LENGTHS[name]:
        llm = LLM(tmp_path, device="cpu", dtype="float32", max_context=context)
        expected = reference_logits(theirs, prompt[:length])
        error = (llm.logits(prompt[: length - 1]) - expected[:-1]).norm() / expected.norm()
        assert error < 1e-4, (context, length)


def test_a_context_that_is_no_whole_pages_is_not_stretched(tmp_path):
    """Tables are rounded up to pages of 64, frequencies are not."""
    theirs = make("dynamic", tmp_path)
    theirs.config.max_position_embeddings = 500
    theirs.config.save_pretrained(tmp_path)
    short = LLM(tmp_path, device="cpu", dtype="float32", max_context=64)
    assert torch.equal(LLM(tmp_path, device="cpu", dtype="float32").logits([1, 2, 3]), short.logits([1, 2, 3]))
