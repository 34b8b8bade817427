"""Every family against transformers, with the same weights."""

import pytest
import torch
from text.families import FAMILIES, greedy, make, reference_logits

from genwright import LLM, SamplingParams
from genwright.text.ops.torch_ops import TorchOps

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


class Overwriting(TorchOps):
    """Every op that adds to a residual leaves NaN in it, as the protocol allows."""

    def add_linear(self, residual, *args, **options):
        y = super().add_linear(residual, *args, **options)
        residual.fill_(torch.nan)
        return y

    def add_moe(self, x, *args):
        y = super().add_moe(x, *args)
        x.fill_(torch.nan)
        return y


@pytest.mark.parametrize("family", FAMILIES)
def test_no_block_reads_a_residual_after_it_was_added(family, tmp_path):
    make(family, tmp_path)
    ours = LLM(tmp_path, device="cpu", dtype="float32", backend="torch")
    expected = ours.logits(PROMPT)
    ours.engine.executor.ops = Overwriting()
    torch.testing.assert_close(ours.logits(PROMPT), expected)
