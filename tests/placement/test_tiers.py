"""What a model holds in each tier, and the seconds of its moves."""

import pytest
import torch

from genwright.placement.tiers import DECODING, Tier, Tiers


def test_bytes_are_counted_with_their_peak() -> None:
    tiers = Tiers(torch.device("cpu"))
    tiers.gpu(100)
    tiers.cpu(7)
    tiers.use.hold(Tier.GPU, -40)
    tiers.use.move(Tier.CPU, Tier.GPU, 5)
    assert (tiers.use.held[Tier.GPU], tiers.use.peak[Tier.GPU], tiers.use.held[Tier.CPU]) == (60, 100, 7)
    assert tiers.use.moved == {(Tier.CPU, Tier.GPU): 5}


def test_moves_are_timed_by_kind_and_stage_while_it_is_asked_for() -> None:
    tiers = Tiers(torch.device("cpu"))
    with tiers.timed("load_weight"):
        pass
    seconds = tiers.seconds = {}
    for _ in range(2):
        with tiers.timed("load_weight"):
            pass
    first = seconds["load_weight_prefill"]
    tiers.stage = DECODING
    with tiers.timed("load_weight"):
        pass
    assert first > 0
    assert seconds["load_weight_prefill"] == first
    assert set(seconds) == {"load_weight_prefill", "load_weight_decoding"}


def test_closing_waits_for_copies_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller frees what they read and write, and another model may get that memory."""
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    for name in ("cpu", "cuda:0"):
        Tiers(torch.device(name)).close()
    assert waited == [torch.device("cuda:0")]
