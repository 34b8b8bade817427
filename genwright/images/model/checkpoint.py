"""Reading a UNet: the published .pt files by their own key names, safetensors, or random weights; and writing one.

What `genwright images train` writes says its own shape, classes, sampler and clusters, in its safetensors header.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genwright.errors import UserError
from genwright.images.model.clusters import Clusters
from genwright.images.model.presets import PRESETS
from genwright.images.model.unet import UNet
from genwright.images.model.unet_config import UNetConfig

BOXED = {"emoji": Path(__file__).parents[1] / "emoji"}  # the models that the package brings
SHARD = 15 * 2**20  # how many bytes of tensors a file of a written model holds at most


@dataclass(frozen=True)
class Description:
    """What a model's own files say of it: its shape, its classes' names, how it is best sampled, its clusters."""

    config: UNetConfig | None = None
    label_names: tuple[str, ...] = ()
    sampler: dict[str, Any] = field(default_factory=dict)
    clusters: Clusters | None = None  # what the UNet's labels are, if they are not classes


def load_unet(model: str, config: UNetConfig | None = None) -> UNet:
    """The UNet of `model` in float32: a checkpoint whose shape is `config` or its own, or `random:PRESET[,seed=0]`."""
    if model.startswith("random:"):
        if config is not None:
            raise UserError(f"{model} takes its shape from its name, not from a preset or flags.")
        return random_unet(model)
    if not locate(model).exists():
        raise UserError(f"There is no file or folder {model}{_hint(model)}")
    config = config or describe(model).config
    if config is None:
        raise UserError(
            f"{model} does not say its UNet's shape; name it by a preset ({', '.join(PRESETS)}) "
            "or by the original's flags."
        )
    with torch.device("meta"):
        unet = UNet(config)
    state = read_state(locate(model))
    expected = {name: tuple(tensor.shape) for name, tensor in unet.state_dict().items()}
    check_state(model, {name: tuple(tensor.shape) for name, tensor in state.items()}, expected)
    unet.load_state_dict({name: tensor.float() for name, tensor in state.items()}, assign=True)
    return unet.eval().requires_grad_(False)


def locate(model: str) -> Path:
    """The file or folder of a model, which may be one that the package brings."""
    return BOXED.get(model, Path(model))


def _hint(model: str) -> str:
    # The names that the package knows, and the files that lie where the model should.
    folder = Path(model).parent
    files = [str(path) for path in sorted(folder.iterdir())] if folder.is_dir() else []
    close = get_close_matches(model, [*BOXED, *(f"random:{name}" for name in PRESETS), *files], 1)
    return f"; did you mean {close[0]}?" if close else "."


def shards(folder: Path) -> list[Path]:
    """The safetensors of a folder, none of which is missing."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"The folder {folder} holds no safetensors.")
    if numbered := re.fullmatch(r"model-\d+-of-(\d{1,5})", files[0].stem):
        for i in range(1, int(numbered[1]) + 1):
            if not (part := folder / f"model-{i}-of-{numbered[1]}.safetensors").is_file():
                raise UserError(f"{part} is missing: the model has {numbered[1]} parts.")
    return files


def describe(model: str) -> Description:
    """What the model's files say of it; nothing, if they are not of our writing."""
    path = locate(model)
    first = shards(path)[0] if path.is_dir() else path
    if model.startswith("random:") or not first.is_file():
        return Description()
    with first.open("rb") as file:
        if file.read(2) == b"PK":
            return Description()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(first, framework="pt") as tensors:
            text = (tensors.metadata() or {}).get("genwright")
    except SafetensorError as error:
        if first.suffix == ".safetensors":
            raise UserError(f"{first} is damaged: it is not a whole safetensors file.") from error
        return Description()  # read_tensors tells what is wrong with it
    if text is None:
        return Description()
    with _described(first):
        said = json.loads(text)
        shape: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in said["config"].items()
        }
        sampler = {key: tuple(value) if isinstance(value, list) else value for key, value in said["sampler"].items()}
        config, label_names, clusters = UNetConfig(**shape), tuple(map(str, said["label_names"])), said.get("clusters")
        if clusters is not None:
            classes, counts = (tuple(map(int, clusters[name])) for name in ("classes", "counts"))
            clusters = Clusters(classes, counts, str(clusters["digest"]))
            if (len(clusters), clusters.num_classes) != (config.num_classes, len(label_names)):
                raise ValueError("clusters of other labels")
        return Description(config, label_names, sampler, clusters)


@contextmanager
def _described(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} has a description that cannot be understood; it is damaged.") from error


def save_unet(folder: Path, unet: UNet, description: Description, dtype: torch.dtype) -> None:
    """Write `model-I-of-N.safetensors`, every file under 16 MiB."""
    from safetensors.torch import save_file

    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in unet.state_dict().items():
        tensor = tensor.detach().to("cpu", dtype).contiguous()
        if size + tensor.nbytes > SHARD and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("model-*-of-*.safetensors"):
        old.unlink()
    metadata = {"genwright": json.dumps(asdict(description))}
    for i, shard in enumerate(shards, 1):
        save_file(shard, folder / f"model-{i}-of-{len(shards)}.safetensors", metadata)


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, or of a folder's safetensors, by name."""
    if path.is_dir():
        return {name: tensor for file in shards(path) for name, tensor in read_state(file).items()}
    state = read_tensors(path)
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise UserError(f"{path} should hold tensors by name (a state dict), but holds something else.")
    return state


def read_tensors(path: Path) -> Any:
    """What a file holds: tensors, in whatever dictionaries and lists; never unpickles anything else."""
    if not path.is_file():
        raise UserError(f"There is no checkpoint file {path}.")
    try:
        with path.open("rb") as file:
            start = file.read(2)
        # torch.save writes a zip archive, before version 1.6 a pickle; safetensors begins with a small length.
        if start == b"PK" or start[:1] == b"\x80":
            return torch.load(path, map_location="cpu", weights_only=True)
        from safetensors.torch import load_file

        return load_file(path)
    except Exception as error:  # a damaged file can fail anywhere in its parser
        raise UserError(f"{path} is neither a whole .pt file of plain tensors nor safetensors.") from error


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
