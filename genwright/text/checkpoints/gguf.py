"""GGUF, llama.cpp's checkpoint files, with Hugging Face's names and configuration."""

import mmap
import re
from collections import Counter
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch

from genwright.errors import UserError
from genwright.kernels.cpu.tile_packing import tiles_of_blocks
from genwright.quant.formats import Format
from genwright.quant.ggml import FORMATS, TYPES, dequantize, repack
from genwright.quant.packed import Packed
from genwright.quant.tiles import Tiles
from genwright.text.architectures.config_fields import each_head
from genwright.text.architectures.registry import GGUF as ARCHITECTURES
from genwright.text.architectures.registry import MODEL_TYPES, read_config
from genwright.text.architectures.weight_map import Part
from genwright.text.checkpoints.gguf_header import MAGIC, Header
from genwright.text.checkpoints.gguf_tensors import hugging_face_tensors, join_latent
from genwright.text.checkpoints.protocol import Checkpoint, narrow, parse_dtype
from genwright.text.checkpoints.rope_order import halves_from_neighbours
from genwright.text.config_file import FieldReader
from genwright.text.tokenizer.tokenizer import Tokenizer
from genwright.text.tokenizer.vocabularies import CONTROL

# Tensors of divisors of the RoPE frequencies, for llama3's and longrope's scaling: settings, not weights.
ROPE_FACTORS = "rope_freqs.weight"
LONGROPE = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}
# In some architectures llama.cpp reorders the rows of these tensors, so that neighbouring channels rotate.
NEIGHBOURS = ("q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias")

# Hugging Face's configuration keys -> required metadata keys (after "llama.").
CONFIG = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}
_ORIGINAL = "original_max_position_embeddings"
YARN = {
    _ORIGINAL: "rope.scaling.original_context_length",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
    "attention_factor": "rope.scaling.yarn_attn_factor",
}
YARN_MSCALE = "rope.scaling.yarn_log_multiplier"  # DeepSeek's, a tenth of it

SAMPLING = {name: f"general.sampling.{name}" for name in ("top_k", "top_p", "min_p")}
SAMPLING |= {"temperature": "general.sampling.temp", "repetition_penalty": "general.sampling.penalty_repeat"}

# Many files give one end-of-text id only; the end of a turn must be searched for among the control tokens.
END_IDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
END_TOKENS = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"}

# Split models: llama.cpp numbers the parts from 0 in the metadata, from 1 in the file names.
SPLIT_NUMBER, SPLIT_COUNT, SPLIT_TENSORS = "split.no", "split.count", "split.tensors.count"
_PART = re.compile(r"(.+)-[0-9]{5}-of-([0-9]{5})\.gguf", re.DOTALL)


class GGUF(Checkpoint):
    """The file is memory-mapped; float tensors are views of it, quantized ones are dequantized on request."""

    stays_packed = False  # except by the CPU's and the GPU's kernels

    def __init__(self, path: Path) -> None:
        header, *others = _open_parts(path)
        self.path, self.metadata = header.path, header.metadata  # those of the first part of a split model
        tensors = [tensor for part in (header, *others) for tensor in part.tensors]
        arch = self.metadata.get("general.architecture")
        if not isinstance(arch, str) or arch not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise UserError(f"{self.path} has the unknown architecture {arch!r:.60}; known are {known}.")
        self._names = ARCHITECTURES[arch]
        if len({tensor.name for tensor in tensors}) < len(tensors):
            raise header.wrong("two of its tensors have the same name")
        self._tensors = hugging_face_tensors(tensors, self._names.layer)
        self._latent = join_latent(self._tensors)
        if others and len(tensors) != (count := self.metadata.get(SPLIT_TENSORS)):
            what = f"have {len(tensors)} tensors, not {count!r:.20} as its {SPLIT_TENSORS} says"
            raise UserError(f"{self.path} and its other parts {what}.")
        self.hf_config = self._hugging_face_config()
        self.config = read_config(self.hf_config, self.path)

    @staticmethod
    def recognises(path: Path) -> bool:
        try:
            with path.open("rb") as file:
                return file.read(len(MAGIC)) == MAGIC
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}.") from None

    def names(self) -> list[str]:
        return [name for name in self._tensors if name not in (ROPE_FACTORS, *LONGROPE.values())]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return TYPES[self._tensors[name].kind].stored or parse_dtype(self.config.dtype)

    def where(self, name: str) -> str:
        return self._tensors[name].path if name in self._tensors else self.path

    def tensor(self, name: str, dtype: torch.dtype | None = None, part: Part | None = None) -> torch.Tensor:
        """Quantized weights become float32 if `dtype` is None. Blocks that a part splits are read whole."""
        stored = self._tensors[name]
        block, shape = TYPES[stored.kind], stored.shape
        kind = dtype or block.stored or torch.float32
        if name in self._latent:
            return self._latent[name].read(kind, part)
        if len(shape) == 1:
            wide = dequantize(self._raw(name), stored.kind, kind).view(shape)
            if self._names.norm_offset and name.endswith("norm.weight"):
                wide = wide - self._names.norm_offset
            return narrow(halves_from_neighbours(wide, self.config.head_dim) if self._reorder(name) else wide, part)
        if part is None:
            wide = dequantize(self._rows(name), stored.kind, kind).view(shape)
        else:
            aligned, inside = part.align(block.elements if part.axis == 1 else 1, shape[part.axis])
            wide = dequantize(self._rows(name, aligned), stored.kind, kind).narrow(*inside)
        if block.stored is None:
            stored.release()
        return wide

    def format(self, name: str) -> Format | None:
        return None if name in self._latent else FORMATS.get(self._tensors[name].kind)

    def stored(self, name: str) -> tuple[str, int]:
        """The name of a tensor's GGML type, and its bytes."""
        stored = self._tensors[name]
        return TYPES[stored.kind].name, stored.size

    def packed(self, name: str, part: Part | None = None) -> Packed:
        return self.packed_on(torch.device("cpu"), name, part)

    def packed_on(self, device: torch.device, name: str, part: Part | None = None) -> Packed:
        stored = self._tensors[name]
        result = repack(self._rows(name, part).to(device), stored.kind)
        stored.release()
        return result

    def tiles(self, parts: Mapping[str, Part], empty: Callable[..., torch.Tensor] = torch.empty) -> Tiles:
        stored = [self._tensors[name] for name in parts]
        rows = [self._rows(name, part) for name, part in parts.items()]
        result = tiles_of_blocks(rows[0] if len(rows) == 1 else torch.cat(rows), stored[0].kind, empty)
        for tensor in stored:
            tensor.release()
        return result

    def _rows(self, name: str, part: Part | None = None) -> torch.Tensor:
        """Stored bytes of a matrix, or of a part in whole blocks: uint8 [rows, bytes] in Hugging Face's row order."""
        raw, block = self._raw(name), TYPES[self._tensors[name].kind]
        if part is not None and part.axis == 1:
            raw = raw.narrow(1, part.start // block.elements * block.bytes, part.length // block.elements * block.bytes)
            part = None
        return halves_from_neighbours(raw, self.config.head_dim, part) if self._reorder(name) else narrow(raw, part)

    def _raw(self, name: str) -> torch.Tensor:
        stored = self._tensors[name]
        if self._reorder(name) and stored.shape[0] % self.config.head_dim:
            raise UserError(
                f"{stored.path} has {stored.shape[0]} rows in {stored.name}, not a multiple of the head dimension "
                f"{self.config.head_dim}."
            )
        raw = torch.frombuffer(stored.file, dtype=torch.uint8, count=stored.size, offset=stored.start)
        return raw.view(prod(stored.shape[:-1]), -1)

    def _reorder(self, name: str) -> bool:
        return self._names.neighbours and name.endswith(NEIGHBOURS)

    def tokenizer(self) -> Tokenizer | None:
        return Tokenizer.from_gguf(self.metadata)

    def generation_config(self) -> FieldReader:
        given = {ours: self.metadata[theirs] for ours, theirs in SAMPLING.items() if theirs in self.metadata}
        return FieldReader(given | ({"do_sample": True} if given else {}), self.path)

    def _hugging_face_config(self) -> dict[str, Any]:
        """The fields of config.json; `read_config` checks the values."""
        path, metadata, tensors = self.path, self.metadata, self._tensors
        arch, family = metadata["general.architecture"], self._names.model_type
        fields = {key[len(arch) + 1 :]: value for key, value in metadata.items() if key.startswith(f"{arch}.")}
        if missing := [key for key in CONFIG.values() if key not in fields]:
            raise UserError(f"{path} lacks {arch}.{missing[0]} in its metadata.")
        if "model.embed_tokens.weight" not in tensors:
            raise UserError(f"{path} lacks the tensor token_embd.weight.")
        head_dims = [fields[key] for key in self._names.head_dims if key in fields]
        if any(head_dim != head_dims[0] for head_dim in head_dims):
            raise UserError(f"{path} has different {', '.join(self._names.head_dims)}; only equal ones are supported.")
        vocab_size = self.shape("model.embed_tokens.weight")[0]
        return {
            "architectures": [MODEL_TYPES[family]],
            "model_type": family,
            **{key: fields[theirs] for key, theirs in CONFIG.items()},
            **({"head_dim": head_dims[0]} if head_dims else self._head_dim(fields)),
            "num_key_value_heads": fields.get("attention.head_count_kv", fields["attention.head_count"]),
            "vocab_size": vocab_size,
            "rope_theta": fields.get("rope.freq_base", 10000.0),
            "rope_scaling": self._rope_scaling(fields),
            "tie_word_embeddings": "lm_head.weight" not in tensors,
            "attention_bias": "model.layers.0.self_attn.q_proj.bias" in tensors,
            "mlp_bias": "model.layers.0.mlp.gate_proj.bias" in tensors,
            "torch_dtype": self._dtype(),
            "eos_token_id": _end_ids(metadata, vocab_size),
            **self._names.config(fields),
        }

    def _head_dim(self, fields: dict[str, Any]) -> dict[str, Any]:
        """llama.cpp's default, which is not always that of transformers' class."""
        dim, heads = fields["embedding_length"], fields["attention.head_count"]
        each = each_head(dim, heads) if self._names.head_dims else None
        return {} if each is None or dim % heads else {"head_dim": each}

    def _rope_scaling(self, fields: dict[str, Any]) -> dict[str, Any] | None:
        kind = fields.get("rope.scaling.type", "linear")
        factor = fields.get("rope.scaling.factor", fields.get("rope.scale_linear")) or 1.0
        scaled = kind != "none" and (kind, factor) != ("linear", 1.0)
        if ROPE_FACTORS in self._tensors:
            if scaled:
                raise UserError(f"{self.path} scales RoPE both by {ROPE_FACTORS} and by type {kind!r:.60}.")
            return {"rope_type": "factors", "factors": self._factors(ROPE_FACTORS)}
        if kind == "longrope":
            original = fields.get("rope.scaling.original_context_length")
            factors = {key: self._factors(name) for key, name in LONGROPE.items() if name in self._tensors}
            attention = fields.get("rope.scaling.attn_factor", 1.0)
            return {"rope_type": kind, _ORIGINAL: original, "attention_factor": attention, **factors}
        yarn = {key: fields[theirs] for key, theirs in YARN.items() if kind == "yarn" and theirs in fields}
        if isinstance(multiplier := fields.get(YARN_MSCALE), float) and kind == "yarn":
            yarn |= dict.fromkeys(("mscale", "mscale_all_dim"), round(10 * multiplier, 6))
        return {"rope_type": kind, "factor": factor, **yarn} if scaled else None

    def _factors(self, name: str) -> Any:
        return self.tensor(name, torch.float32).flatten()[:4096].tolist()  # more than any head needs

    def _dtype(self) -> str:
        """The type of most weights; bfloat16 for quantized ones, because its error is far below the quantization's."""
        elements: Counter[int] = Counter()
        for tensor in self._tensors.values():
            elements[tensor.kind] += prod(tensor.shape)
        return str(TYPES[max(elements, key=elements.__getitem__)].stored or torch.bfloat16).removeprefix("torch.")


def _open_parts(path: Path) -> list[Header]:
    """The header of a file, or those of all parts if it is a part of a split model."""
    header = _open(path)
    count = header.metadata.get(SPLIT_COUNT, 0)
    if count in (0, 1):
        return [header]
    named = _PART.fullmatch(path.name)
    if named is None or int(named[2]) != count:
        what = f"one of {count!r:.20} parts of a split model"
        raise UserError(f"{path} is {what} and must have a name such as NAME-00001-of-00003.gguf.")
    headers, count = [], int(named[2])
    for number in range(count):
        part = path.with_name(f"{named[1]}-{number + 1:05}-of-{count:05}.gguf")
        if not part.is_file():
            raise UserError(f"{path.parent} lacks {part.name}, one of the {count} parts of the model.")
        headers.append(_open(part))
        found = headers[-1].metadata.get(SPLIT_NUMBER), headers[-1].metadata.get(SPLIT_COUNT)
        if found != (number, count):
            raise UserError(f"{part} is not part {number + 1} of {count} by its own metadata; was it renamed?")
    return headers


def _open(path: Path) -> Header:
    try:
        with path.open("rb") as file:
            # Copy-on-write, so that writing to a view does not change the file.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise UserError(f"{path} is empty.") from None
    return Header(mapped, str(path))


def _end_ids(metadata: dict[str, Any], vocab_size: int) -> list[int]:
    """The end-of-sequence ids; ids outside the vocabulary mean none."""
    ids = [metadata.get(key) for key in END_IDS]
    tokens, kinds = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if isinstance(tokens, list) and isinstance(kinds, list):
        pairs = enumerate(zip(tokens, kinds, strict=False))
        ids += [index for index, (token, kind) in pairs if kind == CONTROL and token in END_TOKENS]
    return list(dict.fromkeys(index for index in ids if isinstance(index, int) and 0 <= index < vocab_size))
