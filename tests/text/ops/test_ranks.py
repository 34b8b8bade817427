"""Two ranks, each with its part of the weights, give what one rank gives."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from text.families import make

from genwright.text.cache.layout import PAGE, Cache, CacheSpec, LayerSpec
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.loader import Loader
from genwright.text.ops.step import Chunk, StepBuffers
from genwright.text.ops.torch_ops import TorchOps

CPU = torch.device("cpu")
PROMPT = [1, *torch.randint(3, 199, (23,), generator=torch.Generator().manual_seed(0)).tolist()]
# Biases; a vocabulary that ranks share; experts beside gated and plain shared ones; latent attention in its two forms.
FAMILIES = ("llama-biased", "gemma3", "opt-350m", "mixtral", "qwen2-moe", "deepseek-v2-lite", "deepseek-v3")


@torch.inference_mode()
def logits(folder: Path, rank: int = 0, ranks: int = 1, group: Any = None) -> torch.Tensor:
    """Of all tokens of a prompt; each rank attends with its own heads."""
    model = Loader(open_checkpoint(str(folder)), torch.float32, CPU, rank=rank, ranks=ranks).model(PAGE)
    cfg, home, ops = model.cfg, model.architecture, TorchOps(group=group)
    layers = [
        LayerSpec({name: (row[0] // ranks, *row[1:]) if len(row) > 1 else row for name, row in layer.rows.items()})
        for layer in home.cache_layers(cfg)
    ]
    cache = Cache(CacheSpec(layers, torch.float32), 2, CPU)
    groups = len(CacheSpec(layers, torch.float32).groups)
    step = StepBuffers(64, 1, 1, CPU, groups, model.rope_tables).fill([Chunk(PROMPT, 0, [[1]] * groups, len(PROMPT))])
    x = home.embed(ops, cfg, model.outer, step)
    for weights, layer in zip(model.blocks, cache.layers, strict=True):
        x = home.block(ops, cfg, weights, layer, x, step)
    return home.head(ops, cfg, model.outer, x, step)


def run_rank(rank: int, root: Path, families: tuple[str, ...]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{root}/store", rank=rank, world_size=2)
    torch.save([logits(root / family, rank, 2, dist.group.WORLD) for family in families], root / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, torch.Tensor]]]:
    """The models, and each rank's logits."""
    root = tmp_path_factory.mktemp("ranks")
    families = (*FAMILIES, "deepseek-v3-blocks")
    for family in families:
        make(family, root / family)
    mp.start_processes(run_rank, (root, families), nprocs=2, start_method="fork")
    return root, [dict(zip(families, torch.load(root / f"{rank}.pt"), strict=True)) for rank in range(2)]


@pytest.mark.parametrize("family", FAMILIES)
def test_sums_over_ranks_have_everything_once(family: str, both: tuple[Path, list[dict[str, torch.Tensor]]]) -> None:
    root, ranks = both
    expected = logits(root / family)
    for got in ranks:
        assert (got[family] - expected).norm() < 1e-5 * expected.norm()


def test_ranks_share_the_vocabulary(both: tuple[Path, list[dict[str, torch.Tensor]]]) -> None:
    root, ranks = both
    expected = logits(root / "deepseek-v3-blocks")
    joined = torch.cat([got["deepseek-v3-blocks"] for got in ranks], dim=1)
    assert joined.shape == expected.shape and (joined - expected).norm() < 1e-5 * expected.norm()
