"""Write a checkpoint as a folder of packed weights, matrix by matrix, or with GPTQ layer by layer."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple

import torch

from genwright.quant.formats import Entry, Format
from genwright.quant.packed import Packed
from genwright.text.architectures.weight_map import Source, Sources
from genwright.text.checkpoints.check_tensors import check_tensors, has_draft
from genwright.text.checkpoints.protocol import Checkpoint
from genwright.text.checkpoints.quantized import METHOD
from genwright.text.export import convert
from genwright.text.loader import Loader

HEAD = "lm_head.weight"


class Item(NamedTuple):
    """A tensor to write under `name`: plain, or packed in `form`."""

    name: str
    source: Source
    form: Format | None


def quantize(
    checkpoint: Checkpoint,
    target: Path,
    form: Format,
    device: torch.device,
    progress: convert.Progress,
    calibrated: Iterator[Mapping[str, Packed]] | None = None,
) -> None:
    """Write the new folder `target`; it appears complete or not at all.

    `calibrated` yields the matrices of each layer that are packed already, by name; others are rounded to nearest.
    """
    draft = has_draft(checkpoint)
    check_tensors(checkpoint, draft)
    load = Loader(checkpoint, torch.float32, device, quant=form)
    with convert.new_path(target) as folder:
        layers = (load.weights.block(layer) for layer in range(checkpoint.config.layers + draft))
        blocks = [_items(load, block) for block in (load.outer_sources(), *layers)]
        entries: dict[str, Entry] = {}
        for name, source, packed in chain(*blocks):
            if packed is None:
                entries[name] = convert.plain_entry(checkpoint, source.name, checkpoint.dtype(source.name))
            else:
                entries |= {f"{name}.{key}": entry for key, entry in packed.entries(source.shape).items()}
        ready = chain([{}], calibrated or (), repeat({}))  # GPTQ packs neither outer weights nor a draft layer
        convert.write_safetensors(folder, entries, _tensors(load, blocks, ready), progress)
        config = convert.hugging_face_config(checkpoint, None)
        others = {item.name: item.form.name for item in chain(*blocks) if item.form is not None and item.form != form}
        config["quantization_config"] = {"quant_method": METHOD, "format": form.name, "others": others}
        config["tie_word_embeddings"] = False  # the head is now a packed copy of the embedding
        convert.write_config_files(checkpoint, folder, config)


def _items(load: Loader, block: Mapping[str, Sources]) -> list[Item]:
    """What to write of a block; matrices that are not quantized stay as they are stored."""
    return [
        Item(HEAD if ours == "head" else source.name, source, form)
        for ours, sources in block.items()
        for source, form in zip(sources, load.forms(ours, sources) or _stored_forms(load, sources), strict=True)
    ]


def _stored_forms(load: Loader, sources: Sources) -> list[Format | None]:
    forms = [load.checkpoint.format(source.name) for source in sources]
    return [form if form is not None and form.portable else None for form in forms]


def _tensors(
    load: Loader, blocks: Sequence[Sequence[Item]], ready: Iterator[Mapping[str, Packed]]
) -> Iterator[torch.Tensor]:
    for block, calibrated in zip(blocks, ready, strict=False):
        for item in block:
            yield from _stored(load, item, calibrated.get(item.source.name))


def _stored(load: Loader, item: Item, packed: Packed | None) -> Iterator[torch.Tensor]:
    """The tensors of an item, which are dropped after the last one."""
    _, source, form = item
    if form is None:
        yield convert.read_as(load.checkpoint, source.name, load.checkpoint.dtype(source.name))
        return
    if packed is None:
        rows = list(load.quantized(source, form))
        packed = type(rows[0]).cat(rows)
    for tensor in packed.tensors().values():
        yield tensor.cpu()
