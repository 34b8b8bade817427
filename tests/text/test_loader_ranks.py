"""Ranks' parts of a model, block by block: joined they are the whole, bit for bit."""

from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path

import pytest
import torch
from text.deepseek_folders import with_draft
from text.families import FAMILIES, make

from genwright.errors import UserError
from genwright.parallel.layout import Layout
from genwright.quant.formats import parse_format
from genwright.quant.packed import Weight, tensors_of
from genwright.text.architectures.registry import architecture
from genwright.text.architectures.weight_map import Part, Sources
from genwright.text.checkpoints.huggingface import HuggingFace
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.loader import Loader

CPU = torch.device("cpu")


def join(sources: Sources, parts: list[Weight], unit: Callable[[int], int]) -> torch.Tensor:
    """A fused weight of what two ranks have of it."""
    pieces = []
    for rank, part in enumerate(parts):
        own = [source.part(rank, 2, unit(source.axis or 0)).shape(source.shape) for source in sources]
        pieces.append(dense(part).split([shape[0] for shape in own]))
    whole = []
    for source, first, second in zip(sources, *pieces, strict=True):
        if first.shape == source.shape:
            assert torch.equal(first, second)
        whole.append(first if first.shape == source.shape else torch.cat((first, second), source.axis or 0))
    return torch.cat(whole)


def dense(weight: Weight) -> torch.Tensor:
    return weight if isinstance(weight, torch.Tensor) else weight.dequantize(torch.float32)


def size(block: Mapping[str, Weight]) -> int:
    return sum(tensor.nbytes for weight in block.values() for tensor in tensors_of(weight))


@pytest.mark.parametrize(
    ("family", "quant"),
    [*((family, None) for family in FAMILIES), *(("deepseek-v3-blocks", form) for form in (None, "int4", "fp8"))],
)
def test_the_parts_of_two_ranks_join_to_each_block(family: str, quant: str | None, tmp_path: Path) -> None:
    """Also block by block: what each takes is known before, and the multi-token-prediction layer is one of them."""
    make(family, tmp_path)
    if family == "deepseek-v3-blocks":
        with_draft(tmp_path)
    checkpoint, form = open_checkpoint(str(tmp_path)), parse_format(quant) if quant else None
    whole, *ranks = (
        Loader(checkpoint, torch.float32, CPU, quant=form, rank=rank, ranks=ranks)
        for rank, ranks in ((0, 1), (0, 2), (1, 2))
    )
    layers = checkpoint.config.layers + (family == "deepseek-v3-blocks")
    for sources in (whole.outer_sources(), *(whole.weights.block(layer) for layer in range(layers))):
        parts = [rank.load(sources) for rank in ranks]
        assert [size(part) for part in parts] == [rank.bytes(sources) for rank in ranks]
        for name, weight in whole.load(sources).items():
            packed = whole.forms(name, sources[name])
            joined = join(sources[name], [part[name] for part in parts], packed[0].unit if packed else lambda axis: 1)
            assert torch.equal(joined, dense(weight)), name
    assert sum(rank.block_bytes(0) for rank in ranks) < 1.5 * whole.block_bytes(0)


@pytest.mark.parametrize("family", ["mixtral", "deepseek-v3"])
def test_expert_parallel_ranks_have_whole_experts(family: str, tmp_path: Path) -> None:
    make(family, tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    whole = Loader(checkpoint, torch.float32, CPU).block(2)
    load = [Loader(checkpoint, torch.float32, CPU, rank=rank, ranks=2, expert_parallel=True) for rank in range(2)]
    blocks = [each.block(2) for each in load]
    assert [size(block) for block in blocks] == [each.block_bytes(2) for each in load]
    for name in ("experts.gate_up", "experts.down"):
        assert torch.equal(torch.cat([block[name] for block in blocks]), whole[name])
    assert blocks[0]["out"].shape[1] == whole["out"].shape[1] // 2


class Counting(HuggingFace):
    """Counts the bytes of the tensors that are read."""

    read = 0

    def tensor(self, name: str, dtype: torch.dtype | None = None, part: Part | None = None) -> torch.Tensor:
        found = super().tensor(name, dtype, part)
        self.read += found.numel() * self.dtype(name).itemsize
        return found


@pytest.mark.parametrize(
    ("family", "ranks", "stages", "expert_parallel"),
    [
        *((family, 2, 1, False) for family in ("llama", "gemma3", "opt", "deepseek-v3")),
        ("mixtral", 2, 1, True),
        ("deepseek-v3", 4, 1, True),
        ("llama-3.2", 1, 3, False),
        ("gemma3", 1, 2, False),
        ("mixtral", 2, 3, True),
    ],
)
def test_each_rank_reads_and_holds_its_share(
    family: str, ranks: int, stages: int, expert_parallel: bool, tmp_path: Path
) -> None:
    """One N-th of what ranks divide, and all of what they replicate: norms, routers, latent projections."""
    make(family, tmp_path, {"vocab_size": 200, "num_local_experts": 8})
    layout = Layout(ranks, stages, expert_parallel)
    whole = Counting(tmp_path)
    layers, weights = whole.config.layers, architecture(whole.config).weight_map(whole.config)
    for rank in range(layout.ranks):
        checkpoint, own = Counting(tmp_path), layout.layers(rank, layers)
        loader = Loader(checkpoint, torch.float32, CPU, True, None, rank=rank % ranks, ranks=ranks, layers=own)
        loader.expert_parallel = expert_parallel
        outer = [s for name, each in loader.outer_sources().items() for s in weights.outer.get(name, each)]
        sources = [*outer, *(s for layer in own for each in weights.block(layer).values() for s in each)]
        divided = sum(4 * prod(source.shape) for source in sources if source.axis is not None)
        replicated = sum(4 * prod(source.shape) for source in sources if source.axis is None)
        model = loader.model(64)
        assert checkpoint.read == loader.total_bytes() == divided // ranks + replicated
        held = {
            id(t): t.nbytes for block in (model.outer, *model.blocks) for w in block.values() for t in tensors_of(w)
        }
        assert sum(held.values()) == checkpoint.read
        assert ranks == 1 or replicated < 0.4 * divided


def test_what_ranks_cannot_share_is_one_sentence(tmp_path: Path) -> None:
    make("llama", tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    sentence = (
        r"'model\.layers\.0\.self_attn\.q_proj\.weight' of shape \[64, 64\] cannot be split in 8 equal parts of .*16 r"
    )
    with pytest.raises(UserError, match=sentence):
        Loader(checkpoint, torch.float32, CPU, ranks=8).block(0)
    sentence = (
        r"'model\.layers\.0\.mlp\.down_proj\.weight' of shape \[64, 96\] cannot be split in 2 equal parts of .*32 col"
    )
    with pytest.raises(UserError, match=sentence):
        Loader(checkpoint, torch.float32, CPU, quant=parse_format("int4"), ranks=2).block(0)
