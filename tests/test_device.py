"""Choosing a device, and its free memory."""

import psutil
import pytest
import torch

from genwright.device import free_memory, pick_device
from genwright.errors import UserError


def test_a_part_of_the_available_memory_is_free() -> None:
    assert 0 < free_memory(torch.device("cpu")) < psutil.virtual_memory().total


@pytest.mark.parametrize("name", ["tpu", "cuda:99", "meta"])
def test_a_missing_device_is_one_sentence(name: str) -> None:
    with pytest.raises(UserError, match=r"^(Device|No CUDA device) [^\n]*\.$"):
        pick_device(name)
