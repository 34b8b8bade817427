"""The work of a point: bytes of weights and cache that a step reads, and operations of a prompt and a step."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from genwright.bench.experiments import Point
from genwright.placement.weights import templates
from genwright.quant.packed import Packed, tensors_of
from genwright.text.config import ModelConfig
from genwright.text.llm import LLM
from genwright.text.loader import LOOKED_UP, Model

TABLES = (*LOOKED_UP, "cos", "sin")  # only a row of them is read


@dataclass(frozen=True)
class Work:
    """The work of one point on one engine."""

    weights: float  # bytes that a decoding step reads
    cache: float  # bytes that a decoding step reads, at the mean length of its sequences
    decode: float  # operations of a decoding step
    prefill: float  # operations of reading all prompts


def weight_form(model: Model) -> str:
    """The data type of a model's weights, or how many bits one takes if matrices are packed."""
    if not any(isinstance(weight, Packed) for block in model.blocks for weight in templates(block).values()):
        return str(model.dtype).removeprefix("torch.")
    _, parameters, sizes = zip(*_weights(model), strict=True)
    return f"{8 * sum(sizes) / sum(parameters):.1f} bits"


def work_of(llm: LLM, point: Point) -> Work:
    return Work(
        llm.model.bytes_read(point.batch),
        point.batch * cache_read(llm, point.mean_length),
        point.batch * operations(llm.model, 1, point.mean_length),
        point.batch * operations(llm.model, point.prompt, point.prompt),
    )


def cache_read(llm: LLM, length: float) -> float:
    """Bytes of cache that a sequence of that length reads to decode one token."""
    return _rows_read(llm.model.cfg, llm.engine.executor.cache.spec.row_bytes, length)


def plain_cache_read(cfg: ModelConfig, itemsize: int, length: float) -> float:
    """The same of an engine that keeps every head's keys and values as they are, in numbers of `itemsize` bytes."""
    heads = cfg.heads * (cfg.mla.qk_nope_head_dim + cfg.mla.qk_rope_head_dim + cfg.mla.v_head_dim) if cfg.mla else 0
    return _rows_read(cfg, (heads or 2 * cfg.kv_dim) * itemsize, length)


def _rows_read(cfg: ModelConfig, row: float, length: float) -> float:
    return sum(row * min(length, window or math.inf) for window in cfg.windows)


def operations(model: Model, tokens: int, length: float) -> float:
    """Of the last `tokens` of a sequence: two per active parameter and token, the head's once, and attention's."""
    cfg = model.cfg
    share = cfg.moe.top_k / cfg.moe.experts if cfg.moe else 1.0
    per_token = head = 0.0
    for name, parameters, _ in _weights(model):
        if name == "head":
            head = parameters
        else:
            per_token += parameters * (share if name.startswith("experts.") else 1)
    width = cfg.mla.qk_nope_head_dim + cfg.mla.qk_rope_head_dim + cfg.mla.v_head_dim if cfg.mla else 2 * cfg.head_dim
    pairs = sum(_pairs(tokens, length, window or math.inf) for window in cfg.windows)
    return 2 * (per_token * tokens + head) + 2 * pairs * cfg.heads * width


def _pairs(tokens: int, length: float, window: float) -> float:
    """Keys that the last `tokens` queries of a sequence see, summed: each those before it, and itself."""
    shortest = length - tokens + 1
    seen_all = min(max(window - shortest + 1, 0), tokens)  # queries whose window reaches back to the beginning
    return seen_all * (2 * shortest + seen_all - 1) / 2 + (tokens - seen_all) * min(window, length)


def _weights(model: Model) -> Iterator[tuple[str, int, int]]:
    """Name, parameters and bytes of each weight that steps multiply with."""
    for part in (model.outer, *model.blocks):
        for name, weight in templates(part).items():
            if name not in TABLES:
                yield name, math.prod(weight.shape), sum(tensor.nbytes for tensor in tensors_of(weight))
