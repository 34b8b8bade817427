"""Blocks arrive as they were loaded, whatever their tiers, and only the experts that were chosen."""

import itertools

import pytest
import torch

from genwright.placement.offload_folder import OffloadFolder
from genwright.placement.policy import Policy
from genwright.placement.tiers import Tier, Tiers
from genwright.placement.weight_stream import WeightStream
from genwright.placement.weights import PlacedBlock
from genwright.quant.formats import parse_format
from genwright.quant.packed import Packed, tensors_of

EXPERTS, DIM, FFN = 4, 64, 48
SHARES = [(100, 0), (0, 100), (0, 0), (50, 50), (35, 30), (60, 0), (3, 4)]


def block_of(seed: int, quant: str | None = None) -> dict[str, torch.Tensor | Packed]:
    draw = torch.Generator().manual_seed(seed)
    shapes = {"attention_norm": (DIM,), "qkv": (3 * DIM, DIM), "out": (DIM, DIM), "router": (EXPERTS, DIM)}
    shapes |= {"experts.gate_up": (EXPERTS * 2 * FFN, DIM), "experts.down": (EXPERTS * DIM, FFN), "mlp_norm": (DIM,)}
    block = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    return {
        name: parse_format(quant).quantize(w) if quant and w.dim() == 2 and name != "router" else w
        for name, w in block.items()
    }


def tensors(weights, name: str) -> list[torch.Tensor]:
    return tensors_of(weights[name])


def equal(weights, expected, name: str) -> bool:
    pairs = zip(tensors(weights, name), tensors(expected, name), strict=True)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def stream_of(blocks, policy: Policy, folder) -> tuple[WeightStream, Tiers]:
    tiers = Tiers(torch.device("cpu"), folder=OffloadFolder(folder, 1 << 20))
    placed = [PlacedBlock(block, policy, tiers, f"block-{i}", EXPERTS) for i, block in enumerate(blocks)]
    return WeightStream(placed, tiers, policy.overlap), tiers


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("quant", [None, "int4", "int8", "fp8:channel"])
def test_blocks_arrive_unchanged(shares, quant, tmp_path):
    blocks = [block_of(seed, quant) for seed in range(3)]
    for overlap, separate in itertools.product((True, False), repeat=2):
        policy = Policy(*shares, overlap=overlap, separate_layers=separate)
        stream, _ = stream_of(blocks, policy, tmp_path)
        for _ in range(2):  # an odd number of blocks: the second step has the slots the other way round
            for index, expected in enumerate(blocks):
                weights = stream.take(index)
                assert list(weights) == list(expected) and all(equal(weights, expected, name) for name in expected)
                stream.release(index)
        assert all(equal(stream.blocks[1], blocks[1], name) for name in blocks[1])  # also read as a mapping
        for tier, share in zip(Tier, policy.shares("weights"), strict=True):
            held = sum({Tier.GPU: len(b.gpu), Tier.CPU: len(b.cpu)}.get(tier, 0) for b in stream.blocks)
            size = sum(block.layout.size for block in stream.blocks)
            assert tier is Tier.DISK or abs(held - size * share / 100) <= 3 * 2 * 4096


def test_a_failed_step_starts_again(tmp_path):
    blocks = [block_of(seed) for seed in range(4)]
    stream, _ = stream_of(blocks, Policy(20, 30), tmp_path)
    for stop in (1, 3, 2):
        for index in range(stop):
            assert equal(stream.take(index), blocks[index], "experts.down")
            stream.release(index)
        stream.take(stop)


def test_only_chosen_experts_are_brought_and_the_most_used_move_to_the_gpu(tmp_path):
    blocks = [block_of(seed) for seed in range(2)]
    stream, tiers = stream_of(blocks, Policy(60, 40), tmp_path)
    size = sum(tensor.nbytes for name in ("experts.gate_up", "experts.down") for tensor in tensors(blocks[0], name))
    stream.begin(by_choice=True)
    moved = []
    for _ in range(12):
        before = tiers.use.moved[Tier.CPU, Tier.GPU]
        for index, expected in enumerate(blocks):
            weights = stream.take(index)
            weights.bring_experts(torch.tensor([[3, 2], [3, 3]]))
            for name in ("experts.gate_up", "experts.down"):
                stacks = (each[name].unflatten(0, (EXPERTS, -1)) for each in (weights, expected))
                assert all(torch.equal(a[2:], b[2:]) for a, b in [tuple(stacks)])
            stream.release(index)
        moved.append(tiers.use.moved[Tier.CPU, Tier.GPU] - before)
        assert all(equal(stream.blocks[i], blocks[i], name) for i in range(2) for name in blocks[i])
    assert moved[0] == 2 * 2 * size // EXPERTS  # two experts of each block
    assert moved[-1] == moved[0] // 2 and stream.blocks[0].homes == [3, 1, 2, 0]
    stream.begin(by_choice=False)
    assert equal(stream.take(0), blocks[0], "experts.down")


def test_the_use_of_tiers_has_peaks():
    tiers = Tiers(torch.device("cpu"))
    for count in (5, 7, -9, 2):
        tiers.use.hold(Tier.CPU, count)
    assert (tiers.use.held[Tier.CPU], tiers.use.peak[Tier.CPU]) == (5, 12)
