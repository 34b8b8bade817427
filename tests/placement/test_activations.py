"""Hidden states come back as they were put, whatever tiers their rows are in."""

import itertools
import weakref
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch

from genwright.placement.activations import PlacedActivations
from genwright.placement.offload_folder import OffloadFolder
from genwright.placement.policy import Policy
from genwright.placement.tiers import Tier, Tiers

DIM, TOGETHER, ROWS = 48, 30, 100
STEPS = [(30, 30, 30, 10), (1, 1, 1), (1,), (7, 29, 2, 30), (3,) * 20]


@pytest.mark.parametrize("shares", [(100, 0), (0, 100), (0, 0), (33, 33), (50, 0), (1, 98)])
@pytest.mark.parametrize("overlap", [True, False])
def test_states_come_back(shares, overlap, tmp_path):
    tiers = Tiers(torch.device("cpu"), folder=OffloadFolder(tmp_path, 0))
    policy = Policy(activations_gpu=shares[0], activations_cpu=shares[1], overlap=overlap)
    placed = PlacedActivations(policy, tiers, DIM * 4, TOGETHER, ROWS, 20)
    for counts in STEPS:
        placed.begin(counts)
        states = [torch.randn(count, DIM) for count in counts]
        for index, x in enumerate(states):
            placed.put(index, x.clone())
        for _, index in itertools.product(range(3), range(len(counts))):
            x = placed.get(index)
            assert torch.equal(x, states[index])
            placed.ask((index + 1) % len(counts))
            states[index] = x + 1
            placed.put(index, x + 1)
        assert all(torch.equal(placed.get(index), x) for index, x in enumerate(states))
    gpu, cpu, disk = policy.shares("activations")
    assert bool(tiers.use.moved[Tier.GPU, Tier.CPU]) == bool(cpu) == bool(tiers.use.moved[Tier.CPU, Tier.GPU])
    assert bool(tiers.use.moved[Tier.GPU, Tier.DISK]) == bool(disk) == bool(tiers.use.moved[Tier.DISK, Tier.GPU])
    assert gpu < 100 or not tiers.use.moved
    placed.close()


def test_a_state_is_held_until_computation_waits_for_its_copy(monkeypatch):
    """On a GPU its memory would be used again, by this thread or another, while the copy reads it."""
    log, events = [], itertools.count()
    computing = Mock(wait_event=lambda event: log.append(("waited", event)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: computing)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    policy = Policy(activations_gpu=0, activations_cpu=100)
    placed = PlacedActivations(policy, Tiers(torch.device("cpu")), DIM * 4, TOGETHER, ROWS, 20)
    placed._stream = Mock(record_event=lambda: next(events))
    placed.begin([4] * 5)
    for index in range(5):
        x = torch.ones(4, DIM)
        weakref.finalize(x, log.append, ("freed", index))
        placed.put(index, x)
        del x
    assert log == [(what, index) for index in range(3) for what in ("waited", "freed")]
    placed.close()


def test_a_disk_that_fails_is_told(tmp_path, monkeypatch):
    tiers = Tiers(torch.device("cpu"), folder=OffloadFolder(tmp_path, 0))
    placed = PlacedActivations(Policy(activations_gpu=0), tiers, DIM * 4, TOGETHER, ROWS, 20)
    placed.begin([5])
    placed.put(0, torch.ones(5, DIM))
    placed.get(0)

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("genwright.placement.disk._transfer", fail)
    placed.put(0, torch.zeros(5, DIM))
    with pytest.raises(Exception, match="Input/output error"):
        placed.get(0)
