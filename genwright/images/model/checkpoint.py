"""Read a UNet from a published .pt file or from safetensors, make one with random weights, and write one.

Files that `genwright images train` writes have a description in their header: shape, classes, sampler and clusters.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genwright.arguments import one_of
from genwright.errors import UserError
from genwright.images.model.clusters import Clusters
from genwright.images.model.presets import PRESETS
from genwright.images.model.unet import UNet
from genwright.images.model.unet_config import UNetConfig

BOXED = {"emoji": Path(__file__).parents[1] / "emoji"}  # the models that come with the package
SHARD = 15 * 2**20  # bytes of tensors per written file at most


@dataclass(frozen=True)
class Description:
    """A model's shape, the names of its classes, its best sampler, and its clusters."""

    config: UNetConfig | None = None
    label_names: tuple[str, ...] = ()
    sampler: dict[str, Any] = field(default_factory=dict)
    clusters: Clusters | None = None  # if the UNet's labels are not classes


def load_unet(model: str, config: UNetConfig | None = None) -> UNet:
    """Load a checkpoint in float32, whose shape is `config` or in its description; or make `random:PRESET[,seed=0]`."""
    if model.startswith("random:"):
        if config is not None:
            raise UserError(f"{model} has the shape of its name; do not give a preset or shape flags.")
        return random_unet(model)
    if not locate(model).exists():
        raise UserError(f"There is no file or folder {model}{_hint(model)}")
    config = config or describe(model).config
    state = read_state(locate(model))
    if config is None:
        raise UserError(
            f"{model} does not describe its UNet's shape; give a preset ({', '.join(PRESETS)}) or shape flags such as "
            "--num-channels."
        )
    with torch.device("meta"):
        unet = UNet(config)
    check_state(model, state, {name: tensor.shape for name, tensor in unet.state_dict().items()})
    unet.load_state_dict({name: tensor.float() for name, tensor in state.items()}, assign=True)
    return unet.eval().requires_grad_(False)


def locate(model: str) -> Path:
    """The file or folder of a model, which may be the folder of a training run; the package's own models have names."""
    if not model:
        raise UserError("The model's name is empty; pass emoji, a folder, a file or random:PRESET.")
    path = BOXED.get(model, Path(model))
    trained = path / "model"
    return trained if any(trained.glob("*.safetensors")) and not any(path.glob("*.safetensors")) else path


def _hint(model: str) -> str:
    # The nearest of the known names and of the files in the same folder.
    folder = Path(model).parent
    files = [str(path) for path in sorted(folder.iterdir())] if folder.is_dir() else []
    close = get_close_matches(model, [*BOXED, *(f"random:{name}" for name in PRESETS), *files], 1)
    return f"; did you mean {close[0]}?" if close else "."


def shards(folder: Path) -> list[Path]:
    """The safetensors files of a folder; raises an error if one is missing."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"The folder {folder} has no safetensors files.")
    if numbered := re.fullmatch(r"model-\d+-of-(\d{1,5})", files[0].stem):
        for i in range(1, int(numbered[1]) + 1):
            if not (part := folder / f"model-{i}-of-{numbered[1]}.safetensors").is_file():
                raise UserError(f"{part} is missing; the model has {numbered[1]} files.")
    return files


def describe(model: str) -> Description:
    """The description in a model's files; an empty one if `images train` did not write them."""
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
            raise UserError(f"{first} is damaged; it is not a complete safetensors file.") from error
        return Description()  # read_tensors reports what is wrong with it
    if text is None:
        return Description()
    with _reading_description(first):
        found = json.loads(text)
        shape: dict[str, Any]
        shape, sampler = (
            {key: tuple(value) if isinstance(value, list) else value for key, value in found[part].items()}
            for part in ("config", "sampler")
        )
        config, label_names, clusters = (
            UNetConfig(**shape),
            tuple(map(str, found["label_names"])),
            found.get("clusters"),
        )
        if clusters is not None:
            classes, counts = (tuple(map(int, clusters[name])) for name in ("classes", "counts"))
            clusters = Clusters(classes, counts, str(clusters["digest"]))
            if (len(clusters), clusters.num_classes) != (config.num_classes, len(label_names)):
                raise ValueError("clusters of other labels")
        return Description(config, label_names, sampler, clusters)


@contextmanager
def _reading_description(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"The description in {path} is damaged.") from error


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
    """Read the tensors of a file, or of the safetensors of a folder, by name."""
    if path.is_dir():
        return {name: tensor for file in shards(path) for name, tensor in read_state(file).items()}
    state = read_tensors(path)
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise UserError(f"{path} must hold tensors by name (a state dict).")
    return state


def read_tensors(path: Path) -> Any:
    """Read a file of tensors in dictionaries and lists; nothing else is ever unpickled."""
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
        raise UserError(f"{path} must be a complete .pt file of plain tensors or a safetensors file.") from error


def check_state(
    source: str, state: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], kind: str = "UNet"
) -> None:
    """Raise an error for the first tensor that is missing, unknown or of another shape."""
    for name, shape in expected.items():
        if name not in state:
            raise UserError(f"{source} has no {name}, but this {kind} shape needs it; is the shape right?")
        if state[name].shape != shape:
            raise UserError(
                f"{name} in {source} has shape {list(state[name].shape)}, but this {kind} shape needs {list(shape)}; "
                "is the shape right?"
            )
    for name in state.keys() - expected.keys():
        raise UserError(f"{source} has a {name}, but this {kind} shape has none; is the shape right?")


def random_unet(model: str) -> UNet:
    """Make the UNet of `random:PRESET[,seed=0]`; each tensor is drawn from hash(seed, name)."""
    name, *settings = model.removeprefix("random:").split(",")
    one_of("The preset of random weights", name, PRESETS)
    seed = 0
    for setting in settings:
        key, _, value = setting.partition("=")
        if key != "seed" or not value.isdigit():
            raise UserError(f"{model} must have the form random:PRESET[,seed=NUMBER], without {setting!r}.")
        seed = int(value)
    return draw_weights(PRESETS[name], seed)


def draw_weights(config: UNetConfig, seed: int) -> UNet:
    """A UNet with random weights, scaled so that every layer keeps the variance of its input."""
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
