"""A GGUF file of a Llama shape with random weights, for peers that only read GGUF."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from genwright.text.config import ModelConfig

# format: GGML's type, bytes of its scales in front of a block of 32 weights, bytes of a block
BLOCKS = {"int8": ("Q8_0", 2, 34), "int4": ("Q4_0", 2, 18), "int4:asym": ("Q4_1", 4, 20)}
FLOATS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


def write_gguf(cfg: ModelConfig, kind: str, path: Path) -> None:
    """Write a file in a type of BLOCKS or FLOATS; weights of one shape are equal, which is no faster."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(cfg.max_context)
    writer.add_embedding_length(cfg.dim)
    writer.add_block_count(cfg.layers)
    writer.add_feed_forward_length(cfg.ffn_dim)
    writer.add_head_count(cfg.heads)
    writer.add_head_count_kv(cfg.kv_heads)
    writer.add_layer_norm_rms_eps(cfg.norm_eps)
    writer.add_rope_dimension_count(cfg.rope_dim)
    writer.add_rope_freq_base(cfg.rope.theta)
    writer.add_vocab_size(cfg.vocab_size)
    _add_vocabulary(writer, cfg.vocab_size)
    matrix = cache(lambda rows, columns: _draw(kind, rows, columns))  # drawn once per shape
    stored = gguf.GGMLQuantizationType[FLOATS.get(kind) or BLOCKS[kind][0]]
    for name, shape in _tensors(cfg):
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, np.float32))
        else:
            writer.add_tensor(name, matrix(*shape), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: Any, size: int) -> None:
    """SentencePiece's usual first tokens and then any text; llama.cpp draws random tokens from its vocabulary."""
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*first, *(f"t{i}" for i in range(len(first), size))][:size])
    writer.add_token_scores([0.0] * size)
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * size][:size])  # unknown, control, bytes, normal


def _tensors(cfg: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names (of llama.cpp) and shapes of all tensors."""
    d, ffn = cfg.dim, cfg.ffn_dim
    yield "token_embd.weight", (cfg.vocab_size, d)
    yield "output_norm.weight", (d,)
    yield "output.weight", (cfg.vocab_size, d)
    for layer in range(cfg.layers):
        yield f"blk.{layer}.attn_norm.weight", (d,)
        yield f"blk.{layer}.attn_q.weight", (cfg.q_dim, d)
        yield f"blk.{layer}.attn_k.weight", (cfg.kv_dim, d)
        yield f"blk.{layer}.attn_v.weight", (cfg.kv_dim, d)
        yield f"blk.{layer}.attn_output.weight", (d, cfg.q_dim)
        yield f"blk.{layer}.ffn_norm.weight", (d,)
        yield f"blk.{layer}.ffn_gate.weight", (ffn, d)
        yield f"blk.{layer}.ffn_up.weight", (ffn, d)
        yield f"blk.{layer}.ffn_down.weight", (d, ffn)


def _draw(kind: str, rows: int, columns: int) -> np.ndarray:
    """Random weights of typical size, as the bytes or numbers that the type stores."""
    random = np.random.default_rng(rows * columns)
    if kind in FLOATS:
        values = random.standard_normal((rows, columns), np.float32) * np.float32(0.02)
        if kind == "bfloat16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return values.astype(kind)
    _, scales, size = BLOCKS[kind]
    blocks = random.integers(0, 256, (rows, columns // 32, size), np.uint8)
    scale = 0.02 / (64 if kind == "int8" else 4)
    blocks[..., :scales] = np.array([scale, -8 * scale][: scales // 2], np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)
