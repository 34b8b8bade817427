"""Write a checkpoint as a folder of packed weights, a matrix at a time, or with GPTQ a layer at a time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from genwright.quant.formats import Format
from genwright.quant.packed import Packed
from genwright.text.checkpoints.check_tensors import check_tensors, has_draft
from genwright.text.checkpoints.protocol import Checkpoint
from genwright.text.checkpoints.quantized import METHOD
from genwright.text.checkpoints.safetensors_file import Entry
from genwright.text.export.convert import (
    Progress,
    describe,
    hugging_face_config,
    new_folder,
    plain_entry,
    read_as,
    write_safetensors,
)
from genwright.text.loader import Loader, quantized

HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Item:
    """A tensor to write under `name`: plain, or packed in `form`."""

    name: str
    source: str  # the checkpoint's name of it
    form: Format | None
    shape: tuple[int, ...]


def quantize(
    checkpoint: Checkpoint,
    target: Path,
    form: Format,
    device: torch.device,
    progress: Progress,
    calibrated: Iterator[Mapping[str, Packed]] | None = None,
) -> None:
    """Write `target`, a folder that does not exist yet; it appears whole or not at all.

    `calibrated` gives layer after layer matrices that are packed already, by name; all others are rounded to nearest.
    """
    draft = has_draft(checkpoint)
    check_tensors(checkpoint, draft)
    with new_folder(target) as folder:
        parts = _items(checkpoint, form, draft)
        entries: dict[str, Entry] = {}
        for item in (item for part in parts for item in part):
            if item.form is None:
                entries[item.name] = plain_entry(checkpoint, item.source, checkpoint.dtype(item.source))
            else:
                entries |= {f"{item.name}.{key}": entry for key, entry in item.form.entries(item.shape).items()}
        write_safetensors(folder, entries, _tensors(checkpoint, parts, device, calibrated), progress)
        config = hugging_face_config(checkpoint, None)
        others = {i.name: i.form.name for part in parts for i in part if i.form is not None and i.form != form}
        config["quantization_config"] = {"quant_method": METHOD, "format": form.name, "others": others}
        config["tie_word_embeddings"] = False  # a head that was the embedding is a packed copy of it now
        describe(checkpoint, folder, config)


def _items(checkpoint: Checkpoint, form: Format, draft: bool) -> list[list[Item]]:
    """What to write: of no layer, of each layer, and of the multi-token-prediction layer."""
    load = Loader(checkpoint, torch.float32, torch.device("cpu"), quant=form)
    layers = range(checkpoint.config.layers + draft)
    parts = []
    for part in (load.outer_sources(), *(load.weights.block(layer) for layer in layers)):
        items = []
        for ours, sources in part.items():
            for source, shape, *_ in sources:
                # What is not to be packed stays as it is stored.
                packed = load.form(ours, sources) or checkpoint.format(source)
                items.append(Item(HEAD if ours == "head" else source, source, packed, shape))
        parts.append(items)
    return parts


def _tensors(
    checkpoint: Checkpoint,
    parts: Sequence[Sequence[Item]],
    device: torch.device,
    calibrated: Iterator[Mapping[str, Packed]] | None,
) -> Iterator[torch.Tensor]:
    for number, part in enumerate(parts):
        ready = next(calibrated, {}) if calibrated is not None and number else {}
        for item in part:
            yield from _stored(checkpoint, item, ready.get(item.source), device)


def _stored(checkpoint: Checkpoint, item: Item, packed: Packed | None, device: torch.device) -> Iterator[torch.Tensor]:
    """What a file holds of an item, which is gone from memory after the last."""
    if item.form is None:
        yield read_as(checkpoint, item.source, checkpoint.dtype(item.source))
        return
    if packed is None:
        rows = list(quantized(checkpoint, item.source, item.form, device))
        packed = type(rows[0]).cat(rows)
    for tensor in packed.tensors().values():
        yield tensor.cpu()
