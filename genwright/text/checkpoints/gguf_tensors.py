"""The tensors of a GGUF file by Hugging Face's names: experts one by one, and DeepSeek's split projections joined."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from genwright.quant.ggml import dequantize
from genwright.text.architectures.protocol import GGUF_OUTER
from genwright.text.architectures.weight_map import Part
from genwright.text.checkpoints.gguf_header import StoredTensor

MAX_EXPERTS = 4096
# llama.cpp stores DeepSeek's kv_b_proj as two tensors, those of keys transposed.
KEYS, VALUES, JOINED = "self_attn.k_b_proj.weight", "self_attn.v_b_proj.weight", "self_attn.kv_b_proj.weight"


def hugging_face_tensors(tensors: Sequence[StoredTensor], names: Mapping[str, str]) -> dict[str, StoredTensor]:
    """`names` are those of a layer; one with {} is a stack of experts. Unknown tensors keep their names."""
    found: dict[str, StoredTensor] = {}
    for tensor in tensors:
        name = _hugging_face_name(tensor.name, names)
        if "{}" in name and len(tensor.shape) == 3 and tensor.shape[0] <= MAX_EXPERTS:
            size = tensor.size // tensor.shape[0]
            for expert in range(tensor.shape[0]):
                part = replace(tensor, shape=tensor.shape[1:], start=tensor.start + expert * size, size=size)
                found[name.format(expert)] = part
        elif name.endswith("shared_expert_gate.weight") and len(tensor.shape) == 1:
            found[name] = replace(tensor, shape=(1, *tensor.shape))
        else:
            found[tensor.name if "{}" in name else name] = tensor
    return found


def _hugging_face_name(name: str, names: Mapping[str, str]) -> str:
    """Unknown tensors keep their names, so that `check_tensors` reports them."""
    stem, _, suffix = name.rpartition(".")
    layer = re.fullmatch(r"blk\.([0-9]+)\.(\w+)", stem)
    if layer and f"{layer[2]}.{suffix}" in names:
        return f"model.layers.{layer[1]}.{names[f'{layer[2]}.{suffix}']}"
    if layer and layer[2] in names:
        return f"model.layers.{layer[1]}.{names[layer[2]]}.{suffix}"
    return f"{GGUF_OUTER[stem]}.{suffix}" if stem in GGUF_OUTER else name


class LatentProjection(NamedTuple):
    """kv_b_proj [heads * (nope + v), rank] from keys [heads, rank, nope] and values [heads, v, rank]."""

    keys: StoredTensor
    values: StoredTensor

    @property
    def joined(self) -> StoredTensor:
        """The tensor as a whole, which has no bytes of its own."""
        heads, rank, nope = self.keys.shape
        shape, size = (heads * (nope + self.values.shape[1]), rank), self.keys.size + self.values.size
        return replace(self.keys, shape=shape, size=size)

    def read(self, dtype: torch.dtype, part: Part | None) -> torch.Tensor:
        heads, rows = self.keys.shape[0], self.keys.shape[2] + self.values.shape[1]  # rows of a head
        wanted = part if part is not None and part.axis == 0 else Part(0, 0, heads * rows)
        aligned, inside = wanted.align(rows, heads * rows)
        first, count = aligned.start // rows, aligned.length // rows
        keys, values = (_read_heads(tensor, first, count, dtype) for tensor in self)
        whole = torch.cat((keys.transpose(1, 2), values), dim=1).flatten(0, 1).narrow(*inside)
        return whole if part is None or part.axis == 0 else whole.narrow(*part)


def _read_heads(tensor: StoredTensor, first: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    size = tensor.size // tensor.shape[0]
    start = tensor.start + first * size
    raw = torch.frombuffer(tensor.file, dtype=torch.uint8, count=count * size, offset=start)
    return dequantize(raw.view(count * tensor.shape[1], -1), tensor.kind, dtype).view(count, *tensor.shape[1:])


def join_latent(tensors: dict[str, StoredTensor]) -> dict[str, LatentProjection]:
    """Replace split projections by joined ones; those whose shapes do not fit stay, and are reported as unknown."""
    joined: dict[str, LatentProjection] = {}
    for name in [name for name in tensors if name.endswith(KEYS)]:
        prefix = name.removesuffix(KEYS)
        keys, values = tensors[name], tensors.get(prefix + VALUES)
        if values is None or len(keys.shape) != 3 or len(values.shape) != 3:
            continue
        if keys.shape[0] == values.shape[0] and keys.shape[1] == values.shape[2]:
            joined[prefix + JOINED] = projection = LatentProjection(keys, values)
            del tensors[name], tensors[prefix + VALUES]
            tensors[prefix + JOINED] = projection.joined
    return joined
