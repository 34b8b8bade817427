"""Reading a UNet: the published .pt files by their own key names, safetensors, or random weights."""

import hashlib
import math
from pathlib import Path

import torch
from torch import Tensor

from genwright.errors import UserError
from genwright.images.presets import PRESETS
from genwright.images.unet import UNet, UNetConfig


def load_unet(model: str, config: UNetConfig | None = None) -> UNet:
    """The UNet of checkpoint file `model`, whose shape is `config`, or of `random:PRESET[,seed=0]`; in float32."""
    if model.startswith("random:"):
        if config is not None:
            raise UserError(f"{model} takes its shape from its name, not from a preset or flags.")
        return random_unet(model)
    if config is None:
        raise UserError(
            f"{model} does not say its UNet's shape; name it by a preset ({', '.join(PRESETS)}) "
            "or by the original's flags."
        )
    with torch.device("meta"):
        unet = UNet(config)
    state = read_state(Path(model))
    expected = {name: tuple(tensor.shape) for name, tensor in unet.state_dict().items()}
    check_state(model, {name: tuple(tensor.shape) for name, tensor in state.items()}, expected)
    unet.load_state_dict({name: tensor.float() for name, tensor in state.items()}, assign=True)
    return unet.eval().requires_grad_(False)


def read_state(path: Path) -> dict[str, Tensor]:
    """A file's tensors by name; never unpickles anything else."""
    if not path.is_file():
        raise UserError(f"There is no checkpoint file {path}.")
    try:
        with path.open("rb") as file:
            start = file.read(2)
        # torch.save writes a zip archive, before version 1.6 a pickle; safetensors begins with a small length.
        if start == b"PK" or start[:1] == b"\x80":
            state = torch.load(path, map_location="cpu", weights_only=True)
        else:
            from safetensors.torch import load_file

            state = load_file(path)
    except Exception as error:  # a damaged file can fail anywhere in its parser
        raise UserError(f"{path} is neither a whole .pt file of plain tensors nor safetensors.") from error
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise UserError(f"{path} should hold tensors by name (a state dict), but holds something else.")
    return state


def check_state(
    source: str, found: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]], kind: str = "UNet"
) -> None:
    """One sentence on the first key that is missing, foreign or of another shape."""
    for name, shape in expected.items():
        if name not in found:
            raise UserError(f"{source} lacks {name}, which this {kind} shape has: it is a checkpoint of another shape.")
        if found[name] != shape:
            raise UserError(
                f"In {source}, {name} has shape {list(found[name])}, but this {kind} shape needs {list(shape)}: "
                "it is a checkpoint of another shape."
            )
    for name in found:
        if name not in expected:
            raise UserError(
                f"{source} holds {name}, which this {kind} shape lacks: it is a checkpoint of another shape."
            )


def random_unet(model: str) -> UNet:
    """The UNet of `random:PRESET[,seed=0]`; each tensor is drawn from hash(seed, its name)."""
    name, *settings = model.removeprefix("random:").split(",")
    if name not in PRESETS:
        raise UserError(f"There is no preset {name!r} for random weights; choose one of {', '.join(PRESETS)}.")
    seed = 0
    for setting in settings:
        key, _, value = setting.partition("=")
        if key != "seed" or not value.isdigit():
            raise UserError(f"Random weights take seed=NUMBER, not {setting!r}.")
        seed = int(value)
    return draw_weights(PRESETS[name], seed)


def draw_weights(config: UNetConfig, seed: int) -> UNet:
    """A UNet whose every layer passes on about the variance it gets, so that its images are not flat."""
    with torch.device("meta"):
        unet = UNet(config)
    unet.to_empty(device="cpu")
    for name, tensor in unet.state_dict().items():
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        bound = math.sqrt(3 / math.prod(tensor.shape[1:])) if tensor.dim() > 1 else 0.1
        tensor.uniform_(-bound, bound, generator=generator)
    for module in unet.modules():
        if isinstance(module, torch.nn.GroupNorm):
            module.weight.data += 1
    return unet.eval().requires_grad_(False)
