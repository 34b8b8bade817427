"""Readers of config.json fields that several architectures share."""

from typing import Any

from genwright.arguments import short
from genwright.errors import UserError
from genwright.text.config_file import FieldReader

# The `quant_method` of libraries whose folders text/checkpoints/library_layouts.py can read.
LIBRARIES = ("awq", "gptq", "compressed-tensors", "bitsandbytes", "torchao")


def read_sizes(read: FieldReader) -> dict[str, Any]:
    """Fields that have the same names in all architectures."""
    return {
        "vocab_size": read.integer("vocab_size", 1, 1 << 24),
        "dim": read.integer("hidden_size", 1, 1 << 20),
        "layers": read.integer("num_hidden_layers", 1, 4096),
        "heads": read.integer("num_attention_heads", 1, 4096),
        "max_context": read.integer("max_position_embeddings", 1, 1 << 30, default=2048),
        "eos_ids": read.ids("eos_token_id"),
        "dtype": _read_dtype(read),
    }


def read_heads(read: FieldReader, dim: int, heads: int) -> tuple[int, int]:
    """The head dimension and the number of key-value heads."""
    if read.config.get("head_dim") is None and dim % heads:
        raise UserError(f"{read.where} has a hidden_size of {dim}, which is not a multiple of its {heads} heads.")
    kv_heads = read.integer("num_key_value_heads", 1, 4096, default=heads)
    if heads % kv_heads:
        raise read.wrong("num_key_value_heads", f"a divisor of the {heads} attention heads")
    return read.integer("head_dim", 1, 4096, default=max(dim // heads, 1)), kv_heads


def each_head(dim: object, heads: object) -> int | None:
    """The head dimension that a GGUF file does not name; None if its numbers are wrong, which `read_config` tells."""
    return dim // heads if isinstance(dim, int) and isinstance(heads, int) and heads > 0 else None


def read_layer_types(read: FieldReader, window: int, kinds: object, layers: int) -> tuple[int | None, ...]:
    """Each layer's window; None for full attention."""
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in known for kind in kinds):
        raise read.wrong("layer_types", "full_attention or sliding_attention for each layer")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _read_dtype(read: FieldReader) -> str:
    name = read.text("dtype", read.text("torch_dtype", "float32"))
    if name not in ("float32", "float16", "bfloat16"):
        raise read.wrong("dtype" if "dtype" in read.config else "torch_dtype", "float32, float16 or bfloat16")
    return name


def check_silu(read: FieldReader) -> None:
    if read.text("hidden_act", "silu") not in ("silu", "swish"):
        activation = short(read.config["hidden_act"])
        raise UserError(f"{read.where} has the activation {activation}; this architecture supports only silu.")


def check_quantization(read: FieldReader) -> None:
    """Supported are FP8 blocks of 128 x 128, the folders that `genwright quantize` writes, and those of LIBRARIES."""
    quantization = read.table("quantization_config")
    if not quantization.config or quantization.config.get("quant_method") in ("genwright", *LIBRARIES):
        return
    if quantization.config.get("quant_method") != "fp8":
        raise quantization.wrong("quant_method", f"one of fp8, {', '.join(LIBRARIES)}")
    if quantization.config.get("weight_block_size") != [128, 128]:
        raise quantization.wrong("weight_block_size", "[128, 128], the only supported size")
