"""Ids that stand for tokens of the device, against plain indexing."""

import pytest
import torch

pytest.importorskip("triton")

from genwright.kernels.triton.unread import take_unread


@pytest.mark.parametrize("count", [1, 7, 1500])
def test_negative_ids_are_taken_from_the_tokens(count: int, device: str) -> None:
    known = torch.randint(-1, 50_000, (64,), device=device)
    ids = torch.randint(-64, 1000, (count + 3,), device=device)
    wanted = torch.where(ids < 0, known[(-1 - ids).clamp(min=0)].clamp(min=0), ids)
    wanted[count:] = ids[count:]
    take_unread(ids[:count], known)
    assert torch.equal(ids, wanted)
