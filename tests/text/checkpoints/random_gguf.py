"""Small GGUF files with random weights of any type, written without the gguf package, which a GPU machine may lack."""

from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path

import torch
from quant.random_blocks import random_weights

from genwright.quant.ggml import TYPES
from genwright.text.checkpoints.gguf_file import TensorEntry, write_gguf_header

DIM, FFN, HEADS, KV_HEADS, VOCAB, LAYERS, F32 = 256, 512, 4, 2, 300, 2, 0


def write_random_gguf(path: Path, kind: Callable[[str], str], experts: int = 0, tied: bool = False) -> Path:
    """A Llama whose matrices have the type that `kind` says of their names in llama.cpp; with `experts`, a Mixtral."""
    metadata = {"general.architecture": "llama", "tokenizer.ggml.model": "no_vocab"}
    numbers = {"embedding_length": DIM, "block_count": LAYERS, "feed_forward_length": FFN, "context_length": 512}
    numbers |= {"attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS}
    numbers |= {"attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": DIM // HEADS}
    numbers |= {"expert_count": experts, "expert_used_count": 2} if experts else {}
    metadata |= {f"llama.{key}": value for key, value in numbers.items()}
    kinds = {block.name: number for number, block in TYPES.items()}
    entries = {
        name: TensorEntry(shape, F32 if len(shape) == 1 or "inp" in name else kinds[kind(name)])
        for name, shape in _tensors(experts, tied)
    }
    with path.open("wb") as sink:
        write_gguf_header(sink, metadata, entries)
        for seed, entry in enumerate(entries.values()):
            sink.write(_data(entry, seed).ljust(entry.padded, b"\0"))
    return path


def _data(entry: TensorEntry, seed: int) -> bytes:
    if TYPES[entry.kind].stored is None:
        return random_weights(entry.kind, prod(entry.shape[:-1]), entry.shape[-1], seed).numpy().tobytes()
    values = torch.randn(entry.shape, generator=torch.Generator().manual_seed(seed))
    values = values * 0.1 + 1 if len(entry.shape) == 1 else values
    return values.to(TYPES[entry.kind].stored).view(torch.uint8).numpy().tobytes()


def _tensors(experts: int, tied: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "token_embd.weight", (VOCAB, DIM)
    yield "output_norm.weight", (DIM,)
    if not tied:
        yield "output.weight", (VOCAB, DIM)
    for layer in range(LAYERS):
        for name, shape in _layer(experts):
            yield f"blk.{layer}.{name}.weight", shape


def _layer(experts: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    kv = DIM // HEADS * KV_HEADS
    yield from (("attn_norm", (DIM,)), ("attn_q", (DIM, DIM)), ("attn_k", (kv, DIM)), ("attn_v", (kv, DIM)))
    yield from (("attn_output", (DIM, DIM)), ("ffn_norm", (DIM,)))
    stack, suffix = ((experts,), "_exps") if experts else ((), "")
    if experts:
        yield "ffn_gate_inp", (experts, DIM)
    yield f"ffn_gate{suffix}", (*stack, FFN, DIM)
    yield f"ffn_up{suffix}", (*stack, FFN, DIM)
    yield f"ffn_down{suffix}", (*stack, DIM, FFN)
