"""Every family against transformers, with the same weights."""

import pytest
import torch
from text.families import FAMILIES, greedy, make, reference_logits

from genwright import LLM, SamplingParams

PROMPT = [1, *torch.randint(3, 199, (69,), generator=torch.Generator().manual_seed(0)).tolist()]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_greedy_tokens_equal_transformers(family, tmp_path):
    theirs = make(family, tmp_path)
    ours = LLM(tmp_path, device="cpu", dtype="float32")
    expected = reference_logits(theirs, PROMPT)
    error = (ours.logits(PROMPT) - expected).norm() / expected.norm()
    assert error < 1e-4
    params = SamplingParams(max_new_tokens=64, ignore_eos=True)
    assert ours.generate([PROMPT], params)[0].ids == greedy(theirs, PROMPT, 64)
