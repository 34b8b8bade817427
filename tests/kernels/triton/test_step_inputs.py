"""The inputs of a step, with ids that stand for tokens of the device, against plain indexing."""

import pytest
import torch

pytest.importorskip("triton")

from genwright.kernels.triton.step_inputs import write_inputs


@pytest.mark.parametrize("count", [1, 7, 1500])
def test_negative_ids_are_taken_from_the_tokens(count: int, device: str) -> None:
    known = torch.randint(-1, 50_000, (64,), device=device)
    staged = torch.randint(-64, 1000, (count + 3,), device=device)  # the last three are no ids
    wanted = torch.where(staged < 0, known[(-1 - staged).clamp(min=0)].clamp(min=0), staged)
    wanted[count:] = staged[count:]
    inputs = torch.full_like(staged, 7)
    write_inputs(inputs, staged, known, count)
    assert torch.equal(inputs, wanted)


def test_without_tokens_of_the_device_values_are_copied(device: str) -> None:
    staged = torch.randint(-64, 1000, (1030,), device=device)
    inputs = torch.zeros_like(staged)
    write_inputs(inputs, staged, None, 1030)
    assert torch.equal(inputs, staged)
