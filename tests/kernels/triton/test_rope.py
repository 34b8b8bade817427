"""Norm, RoPE and cache write against the torch backend, bit for bit except for the norm's sum."""

from types import SimpleNamespace

import pytest
import torch

from genwright.kernels.triton.rope import rope_write
from genwright.text.cache.layout import Cache, CacheSpec, LayerSpec
from genwright.text.config import ROPE, Attention
from genwright.text.ops.rope import cos_sin
from genwright.text.ops.torch_ops import TorchOps

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = 1e-6
# Triton's interpreter truncates to bf16, while a GPU rounds.
BF16 = pytest.param(torch.bfloat16, marks=pytest.mark.gpu)


def both(tokens, heads, kv_heads, head_dim, dtype, norm=False, rope=True, bits=None):
    """q and the cache's tensors from the kernel and from the torch backend; the kernel's last token is padding."""
    width = (heads + 2 * kv_heads) * head_dim
    qkv = torch.randn(tokens, width).to(dtype).to(DEVICE)
    norms = (torch.rand(2, head_dim) + 0.5).to(dtype).to(DEVICE) if norm else (None, None)
    positions = torch.randint(300, (tokens,), device=DEVICE)
    tables = cos_sin(torch.rand(head_dim // 2), 1.2, torch.arange(300)) if rope else None
    cos, sin = (table.to(DEVICE) for table in tables) if tables else (None, None)
    slots = torch.randperm(3 * 64)[:tokens].to(DEVICE)
    spec = CacheSpec([LayerSpec(dict.fromkeys(("k", "v"), (kv_heads, head_dim)))], dtype, bits)
    ours, theirs = (Cache(spec, 3, torch.device(DEVICE)).layers[0] for _ in range(2))
    padded = slots.clone()
    padded[-1] = -1
    sizes = (heads, kv_heads, head_dim)
    k, v = ours.rows["k"], ours.rows["v"]
    q = rope_write(qkv, cos, sin, padded, k, v, *norms, EPS, *sizes, positions, ours.rows)
    weights = dict(zip(("q_norm", "k_norm"), norms, strict=True)) if norm else {}
    step = SimpleNamespace(slots=[slots], rope=lambda kind: (cos[positions], sin[positions]))
    expected = TorchOps().rope_write(
        qkv, weights, Attention(1.0, rope=ROPE if rope else None, norm_eps=EPS), theirs, step
    )
    for rows in theirs.rows.values():
        rows.flatten(0, 1)[slots[-1]] = 0
    return (q, *ours.rows.values()), (expected, *theirs.rows.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BF16])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(3, 1, 80), (8, 2, 64), (6, 6, 96)])
@pytest.mark.parametrize("rope", [True, False])
def test_equals_the_reference_bit_for_bit(heads, kv_heads, head_dim, rope, dtype):
    for ours, theirs in zip(*both(5, heads, kv_heads, head_dim, dtype, rope=rope), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(3, 1, 80), (8, 5, 64), (2, 2, 256)])
def test_quantized_rows_equal_the_reference_bit_for_bit(heads, kv_heads, head_dim, bits):
    for ours, theirs in zip(*both(3, heads, kv_heads, head_dim, torch.float16, bits=bits), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BF16])
def test_norms_of_heads_equal_the_reference(dtype):
    """The order of the sum of squares may differ, so the last bit of the result may differ."""
    eps = torch.finfo(dtype).eps
    for ours, theirs in zip(*both(5, 8, 2, 128, dtype, norm=True), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=4 * eps, atol=8 * eps)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 32, 128), (28, 4, 128), (8, 4, 256)])
def test_equals_the_reference_at_size(heads, kv_heads, head_dim, dtype):
    for ours, theirs in zip(*both(150, heads, kv_heads, head_dim, dtype), strict=True):
        assert torch.equal(ours, theirs)
