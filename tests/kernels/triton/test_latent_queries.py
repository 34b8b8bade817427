"""The absorbed queries, and the rows that are written to the cache, against the torch backend's functions."""

import pytest
import torch

from genwright.kernels import PAGE
from genwright.kernels.triton.latent_queries import LatentShape, absorb
from genwright.text.config import Mla
from genwright.text.ops.latent_attention import absorb_keys, latent_row, rotate_tail
from genwright.text.ops.norm import rms_norm
from genwright.text.ops.rope import cos_sin

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("tokens", [1, 18])
def test_equal_the_torch_backend(tokens, interleaved):
    torch.manual_seed(tokens)
    mla, heads = Mla(None, 40, 12, 8, 10, interleaved), 3
    first = torch.randn(tokens, heads * 20 + 48, device=DEVICE)
    q, kv = first.split((heads * 20, 48), dim=1)
    kv_b, norm = torch.randn(heads * 22, 40, device=DEVICE), torch.rand(40, device=DEVICE) + 0.5
    tables = tuple(table.to(DEVICE) for table in cos_sin(1 / 100.0 ** torch.arange(0, 1, 0.25), 1.0, torch.arange(64)))
    positions, slots = torch.randint(64, (tokens,), device=DEVICE), torch.randperm(2 * PAGE, device=DEVICE)[:tokens]
    slots[tokens // 2] = -1  # padding
    latents = torch.zeros(2, PAGE, 48, device=DEVICE)
    shape = LatentShape(heads, 12, 8, 10, 40, interleaved)
    queries = absorb(q, kv, norm, kv_b, tables, positions, slots, latents, 1e-6, shape)

    at_positions = tables[0][positions], tables[1][positions]
    want = absorb_keys(rotate_tail(q.unflatten(1, (heads, -1)), mla, at_positions), kv_b, mla)
    torch.testing.assert_close(queries, want, atol=1e-5, rtol=1e-5)
    rows = latent_row(kv, rms_norm(kv[:, :40], norm, 1e-6), mla, at_positions)
    expected = torch.zeros_like(latents)
    expected.flatten(0, 1)[slots[slots >= 0]] = rows[slots >= 0]
    torch.testing.assert_close(latents, expected, atol=1e-5, rtol=1e-5)
