"""Mixtures of experts of the triton backend against the torch backend."""

import pytest
import torch
from text.ops.test_moe import ROUTING, config

from genwright.quant.formats import parse_format
from genwright.text.ops.torch_ops import TorchOps


@pytest.mark.parametrize("name", ROUTING)
@pytest.mark.parametrize(
    ("quant", "shared", "deterministic"), [(None, 64, False), ("int8", 0, False), (None, 64, True)]
)
def test_a_mixture_equals_the_torch_backend(ops, name, quant, shared, deterministic, device):
    torch.manual_seed(1)
    ops.deterministic = deterministic
    moe = config(**ROUTING[name], ffn_dim=64, shared_dim=shared)
    shapes = {"experts.gate_up": (12 * 128, 32), "experts.down": (12 * 32, 64)}
    shapes |= {"shared.gate_up": (2 * shared, 32), "shared.down": (32, shared)} if shared else {}
    weights = {key: torch.randn(shape, device=device) / 8 for key, shape in shapes.items()}
    if quant is not None:
        weights = {key: parse_format(quant).quantize(weight) for key, weight in weights.items()}
    weights |= {"norm": torch.rand(32, device=device) + 0.5, "router": torch.randn(12, 32, device=device)}
    if name == "DeepSeek-V3":
        weights["router.correction"] = torch.rand(12, device=device)
    for count in (1, 3, 9) if device == "cpu" else (1, 3, 12, 70):
        x = torch.randn(count, 32, device=device)
        expected = TorchOps().add_moe(x, weights, "norm", 1e-5, moe)
        bound = 1e-4 * moe.scale  # integer products round their inputs to 16 bits
        torch.testing.assert_close(ops.add_moe(x, weights, "norm", 1e-5, moe), expected, atol=bound, rtol=1e-4)
