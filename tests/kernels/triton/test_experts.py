"""Routing and the weighted sum of experts against the torch backend."""

import pytest
import torch

from genwright.kernels.triton.experts import mix, route
from genwright.text.config import Moe
from genwright.text.ops import moe

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(("experts", "top_k"), [(8, 2), (60, 4), (128, 8), (7, 7), (3, 1)])
@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize("normalise", [False, True])
def test_route_equals_the_torch_backend(experts, top_k, scores, normalise):
    logits = torch.randn(5, experts, device=DEVICE) * 2
    bias = torch.randn(experts, device=DEVICE) if scores == "sigmoid" else None
    kind = Moe((True,), experts, top_k, 1, 0, False, scores, 1, 1, bias is not None, normalise, 2.5)
    want_shares, want_ids = moe.route(logits, bias, kind)
    shares, ids = route(logits, bias, top_k, sigmoid=scores == "sigmoid", normalise=normalise, scale=2.5)
    assert torch.equal(ids, want_ids)
    torch.testing.assert_close(shares, want_shares, rtol=1e-5, atol=1e-7)


def test_ties_choose_the_lowest_ids():
    _, ids = route(torch.zeros(1, 6, device=DEVICE), None, 3, sigmoid=False, normalise=True, scale=1.0)
    assert ids.tolist() == [[0, 1, 2]]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, under the interpreter
@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nan_and_infinity_give_valid_expert_ids(value, scores):
    logits = torch.randn(2, 60, device=DEVICE)
    logits[1, 7] = value
    shares, ids = route(logits, None, 4, sigmoid=scores == "sigmoid", normalise=True, scale=1.0)
    assert ids.min() >= 0 and ids.max() < 60 and shares[0].isfinite().all()


@pytest.mark.parametrize(("tokens", "top_k", "dim"), [(1, 2, 4096), (3, 8, 577), (70, 1, 64)])
def test_weighted_sum(tokens, top_k, dim):
    y, shares = torch.randn(tokens, top_k, dim, device=DEVICE), torch.rand(tokens, top_k, device=DEVICE)
    want = (y.double() * shares.double()[..., None]).sum(dim=1)
    torch.testing.assert_close(mix(y, shares).double(), want, rtol=1e-5, atol=1e-5)
