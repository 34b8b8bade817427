"""Routing and the weighted sum of experts against the torch backend."""

import pytest
import torch

from genwright.kernels.triton.experts import mix, norm_router, route
from genwright.text.config import Moe
from genwright.text.ops import moe
from genwright.text.ops.norm import rms_norm

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


@pytest.mark.parametrize(("tokens", "dim", "experts"), [(1, 64, 8), (3, 100, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norm_and_router_equal_the_torch_backend(tokens, dim, experts, dtype):
    x, norm = torch.randn(tokens, dim, device=DEVICE).to(dtype), torch.rand(dim, device=DEVICE).to(dtype)
    weight = torch.randn(experts, dim, device=DEVICE)
    want = rms_norm(x, norm, 1e-5)
    normed, logits = norm_router(x, norm, weight, 1e-5)
    torch.testing.assert_close(normed, want)
    torch.testing.assert_close(logits.double(), normed.double() @ weight.double().T, rtol=1e-5, atol=1e-5)


GROUPED = {  # experts, groups, best groups, top k
    "DeepSeek-V2": (160, 8, 3, 6),
    "DeepSeek-V3": (256, 8, 4, 8),
    "small": (12, 4, 2, 3),
    "groups of a number of experts that is no power of two": (15, 3, 1, 5),
}


@pytest.mark.parametrize("shape", GROUPED.values(), ids=GROUPED)
@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_grouped_route_equals_the_torch_backend(shape, scores):
    experts, groups, top_groups, top_k = shape
    logits = torch.randn(5, experts, device=DEVICE) * 2
    bias = torch.randn(experts, device=DEVICE) if scores == "sigmoid" else None
    kind = Moe((True,), experts, top_k, 1, 0, False, scores, groups, top_groups, bias is not None, True, 2.5)
    want_shares, want_ids = moe.route(logits, bias, kind)
    sizes = {"groups": groups, "top_groups": top_groups}
    shares, ids = route(logits, bias, top_k, sigmoid=scores == "sigmoid", normalise=True, scale=2.5, **sizes)
    assert torch.equal(ids, want_ids)
    torch.testing.assert_close(shares, want_shares, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("biased", [False, True])
def test_ties_of_groups_choose_the_first_groups_and_the_lowest_ids(biased):
    logits = torch.tensor([[0.0] * 12, [0.0, 3, 0, 0, 3, 0, 3, 0, 0, 0, 0, 3]], device=DEVICE)
    bias = torch.zeros(12, device=DEVICE) if biased else None
    _, ids = route(logits, bias, 5, sigmoid=biased, normalise=True, scale=1.0, groups=4, top_groups=2)
    assert ids.tolist() == [[0, 1, 2, 3, 4], [1, 4, 0, 2, 3]]


def test_ties_choose_the_lowest_ids():
    _, ids = route(torch.zeros(1, 6, device=DEVICE), None, 3, sigmoid=False, normalise=True, scale=1.0)
    assert ids.tolist() == [[0, 1, 2]]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, under the interpreter
@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nan_and_infinity_give_valid_expert_ids(value, scores):
    logits = torch.randn(2, 60, device=DEVICE)
    logits[1, 7] = value
    for groups in (1, 4):
        sizes = {"groups": groups, "top_groups": groups // 2 or 1}
        shares, ids = route(logits, None, 4, sigmoid=scores == "sigmoid", normalise=True, scale=1.0, **sizes)
        assert ids.min() >= 0 and ids.max() < 60 and shares[0].isfinite().all()


@pytest.mark.parametrize(("tokens", "top_k", "dim"), [(1, 2, 4096), (3, 8, 577), (70, 1, 64)])
def test_weighted_sum(tokens, top_k, dim):
    y, shares = torch.randn(tokens, top_k, dim, device=DEVICE), torch.rand(tokens, top_k, device=DEVICE)
    want = (y.double() * shares.double()[..., None]).sum(dim=1)
    torch.testing.assert_close(mix(y, shares).double(), want, rtol=1e-5, atol=1e-5)
    base = torch.randn(tokens, dim, device=DEVICE)
    torch.testing.assert_close(mix(y, shares, base).double(), want + base, rtol=1e-5, atol=1e-5)
