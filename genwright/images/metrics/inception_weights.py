"""Read the published weights of FID's Inception.

pytorch-fid and torch-fidelity publish a state dict; NVIDIA (StyleGAN, clean-fid) publishes a TorchScript archive, whose
names are changed to those of the state dict.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from genwright.errors import UserError
from genwright.images.metrics.inception import BLOCKS, STEM, Inception, layers, shapes
from genwright.images.metrics.torchscript import is_torchscript, read_torchscript
from genwright.images.model.checkpoint import check_state, read_state


def load_inception(path: Path, device: str | torch.device = "cpu") -> Inception:
    """The network with the weights of a state dict or a TorchScript archive."""
    return Inception(_read_nvidia(path) if is_torchscript(path) else read_state(path), str(path), device)


def _read_nvidia(path: Path) -> dict[str, Tensor]:
    try:
        found = read_torchscript(path)
    except Exception as error:  # a damaged file can fail anywhere in its parser
        raise UserError(f"{path} is damaged, or not a TorchScript archive of plain modules.") from error
    expected = shapes()
    wanted = {"output.weight": expected["fc.weight"], "output.bias": expected["fc.bias"]}
    names = dict(zip(_nvidia_names(), (name for name, *_ in layers()), strict=True))
    parts = {"weight": "conv.weight", "beta": "bn.bias", "mean": "bn.running_mean", "var": "bn.running_var"}
    renamed = {f"{theirs}.{part}": f"{ours}.{parts[part]}" for theirs, ours in names.items() for part in parts}
    wanted |= {theirs: expected[ours] for theirs, ours in renamed.items()}
    check_state(str(path), found, wanted, "Inception")
    # NVIDIA's batch norms have no gain.
    state = {f"{ours}.bn.weight": torch.ones(expected[f"{ours}.bn.weight"]) for ours in names.values()}
    state |= {ours: found[theirs] for theirs, ours in renamed.items()}
    return state | {"fc.weight": found["output.weight"], "fc.bias": found["output.bias"]}


def _nvidia_names() -> Iterator[str]:
    # TensorFlow's names: the second and later convolutions of a tower, towers of a block, and blocks have numbers.
    def numbered(name: str, i: int) -> str:
        return f"{name}_{i}" if i else name

    for i in range(sum(map(len, STEM))):
        yield f"layers.{numbered('conv', i)}"
    for i, branches in enumerate(BLOCKS.values()):
        block = f"layers.{numbered('mixed', i)}"
        joint = "_" if any(branch.fork for branch in branches) else "."
        lone = len(branches[0].chain) == 1  # a first branch of one convolution is in no tower
        for j, branch in enumerate(branches):
            tower = "" if lone and not j else numbered("tower", j - lone) + joint
            yield from (f"{block}.{tower}{numbered('conv', k)}" for k in range(len(branch.chain)))
            yield from (f"{block}.{tower}mixed_{numbered('conv', k)}" for k in range(len(branch.fork)))
