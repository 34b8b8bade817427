"""The triton backend: the reference's ops as fused kernels on an NVIDIA GPU."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn.functional import linear

from genwright.kernels.cuda.decode_attention import Scratch, rope_attend, serves
from genwright.kernels.cuda.fused_linear import CHUNK, MOST_TOKENS, operand, product
from genwright.kernels.cuda.tilings import tiling
from genwright.kernels.triton.decode_attention import DecodeScratch, decode_attention
from genwright.kernels.triton.elementwise import rms_norm, silu_mul
from genwright.kernels.triton.experts import mix, route
from genwright.kernels.triton.matmul import packed_matmul
from genwright.kernels.triton.prefill_attention import prefill_attention
from genwright.kernels.triton.rope import rope_write
from genwright.kernels.triton.unpack import unpack
from genwright.quant.packed import Packed, Weight
from genwright.text.cache.layout import LayerCache
from genwright.text.config import ModelConfig
from genwright.text.ops.deterministic import Deterministic
from genwright.text.ops.moe import FEW
from genwright.text.ops.step import Step
from genwright.text.ops.torch_ops import Reference, Weights

MOST_ROWS = 128  # of a product that unpacks weights as it goes; more are worth unpacking them first
MOST_QUERIES = 8  # of a sequence, for attention that is split over its keys


class Fused(Reference):
    """Few tokens take kernels that read each weight once, whatever its format; many take the library's products.

    Kernels start before the one ahead of them has ended (programmatic dependent launch) and wait for it inside.
    """

    fused = True

    def __init__(self, device: torch.device) -> None:
        self._early = torch.cuda.get_device_capability(device) >= (9, 0)  # whether the GPU has such launches
        self._scratch: dict[tuple[int, int], DecodeScratch] = {}
        self._shared: dict[tuple[int, int], Scratch] = {}

    def product(self, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
        y = self.few(x, weight, bias=bias)
        if y is not None:
            return y
        if not isinstance(weight, Packed):
            return linear(x, weight, bias)
        if len(x) <= MOST_ROWS:
            return packed_matmul(x, weight, bias)
        return linear(x, unpack(weight, x.dtype), bias)

    def norm(self, x: torch.Tensor, weights: Weights, name: str, eps: float) -> torch.Tensor:
        return rms_norm(x, weights[name], eps, pdl=self._early)

    def add_linear(self, residual: torch.Tensor, x: torch.Tensor, weights: Weights, name: str) -> torch.Tensor:
        weight, bias = weights[name], weights.get(f"{name}.bias")
        y = self.few(x, weight, bias=bias, residual=residual)
        if y is None and isinstance(weight, torch.Tensor) and bias is None:
            return torch.addmm(residual, x, weight.t())
        return residual + self.all_reduce(self.linear(x, weights, name)) if y is None else y

    def rope_attend(
        self,
        qkv: torch.Tensor,
        weights: Weights,
        cfg: ModelConfig,
        cache: LayerCache,
        step: Step,
        scale: float,
        window: int | None,
    ) -> torch.Tensor:
        """One new token per sequence takes a kernel of its own."""
        k, v = cache.rows["k"], cache.rows["v"]
        if step.queries != 1 or not serves(k, cfg.heads):
            return super().rope_attend(qkv, weights, cfg, cache, step, scale, window)
        share = cfg.heads // cfg.kv_heads
        if (share, cfg.head_dim) not in self._shared:
            self._shared[share, cfg.head_dim] = Scratch.allocate(share, cfg.head_dim, qkv.device)
        norms = (weights["q_norm"], weights["k_norm"]) if "q_norm" in weights else None
        return rope_attend(
            qkv,
            step.tables,
            step.positions,
            step.slots,
            step.lengths,
            step.page_table,
            k,
            v,
            norms,
            cfg.norm_eps,
            cfg.heads,
            scale,
            window,
            self._shared[share, cfg.head_dim],
            self._early,
        )

    def qkv_rope_write(
        self, qkv: torch.Tensor, weights: Weights, cfg: ModelConfig, cache: LayerCache, step: Step
    ) -> torch.Tensor:
        cos, sin = step.tables or (None, None)
        return rope_write(
            qkv,
            cos,
            sin,
            step.slots,
            cache.rows["k"],
            cache.rows["v"],
            weights.get("q_norm"),
            weights.get("k_norm"),
            cfg.norm_eps,
            cfg.heads,
            cfg.kv_heads,
            cfg.head_dim,
            step.positions,
            _scales(cache),
            pdl=self._early,
        )

    def attend(self, q: torch.Tensor, cache: LayerCache, step: Step, scale: float, window: int | None) -> torch.Tensor:
        k, v, queries = cache.rows["k"], cache.rows["v"], step.queries
        if queries is None or queries > MOST_QUERIES:
            return self._attend_chunks(q, cache, step, scale, window)
        rows = queries * q.shape[1] // k.shape[2]
        if (rows, q.shape[2]) not in self._scratch:
            self._scratch[rows, q.shape[2]] = DecodeScratch.allocate(rows, q.shape[2], q.device)
        scratch = self._scratch[rows, q.shape[2]]
        return decode_attention(
            q, k, v, step.page_table, step.lengths, queries, scale, window, scratch, _scales(cache), pdl=self._early
        )

    def _attend_chunks(
        self, q: torch.Tensor, cache: LayerCache, step: Step, scale: float, window: int | None
    ) -> torch.Tensor:
        k, v = cache.rows["k"], cache.rows["v"]
        table, lengths, offsets = step.page_table, step.lengths, step.offsets
        return prefill_attention(
            q, k, v, table, lengths, offsets, step.most_queries, scale, window, _scales(cache), pdl=self._early
        )

    def silu_gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        return silu_mul(gate_up, pdl=self._early)

    def route(self, x: torch.Tensor, weights: Weights, cfg: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
        moe = cfg.moe
        assert moe is not None
        if moe.groups > 1:
            return super().route(x, weights, cfg)
        logits, bias = self.linear(x.float(), weights, "router"), weights.get("router.correction")
        sigmoid = moe.scores == "sigmoid"
        return route(
            logits, bias, moe.top_k, sigmoid=sigmoid, normalise=moe.normalise, scale=moe.scale, pdl=self._early
        )

    def experts(self, x: torch.Tensor, ids: torch.Tensor, gate_up: Weight, down: Weight) -> torch.Tensor:
        """Few tokens one by one, each expert read where it lies; of packed ones as many as keep the host out of it."""
        first, second = operand(gate_up), operand(down)
        if len(x) > _most_alone(gate_up) or first is None or second is None:
            return super().experts(x, ids, gate_up, down)
        cut = tiling(first, x[:1], gate=True, stack=True)
        if cut is None:
            return super().experts(x, ids, gate_up, down)
        gated = product(x, first, cut, gate=True, experts=ids, dependent=self._early)
        cut = tiling(second, gated[:1], gate=False, stack=True)
        if cut is None:
            return super().experts(x, ids, gate_up, down)
        y = product(gated, second, cut, experts=ids.view(-1, 1), dependent=self._early)
        return y.unflatten(0, ids.shape)

    def mix(self, y: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        return mix(y, shares, pdl=self._early)

    def most_graphed(self, cfg: ModelConfig, blocks: Sequence[Weights]) -> int:
        """Tokens of a step that never asks the host, and so can be a CUDA graph."""
        stacks = [weight for weights in blocks for name, weight in weights.items() if name.startswith("experts.")]
        return 0 if cfg.mla is not None else min(map(_most_alone, stacks), default=sys.maxsize)

    def few(
        self,
        x: torch.Tensor,
        weight: Weight,
        *,
        bias: torch.Tensor | None = None,
        norm: torch.Tensor | None = None,
        eps: float = 0.0,
        residual: torch.Tensor | None = None,
        gate: bool = False,
    ) -> torch.Tensor | None:
        if len(x) > MOST_TOKENS:
            return None
        known = operand(weight)
        cut = None if known is None else tiling(known, x, gate)
        if known is None or cut is None:
            return None
        if not x.is_contiguous() or x.data_ptr() % CHUNK:
            x = x.clone(memory_format=torch.contiguous_format)
        return product(
            x, known, cut, bias=bias, norm=norm, eps=eps, residual=residual, gate=gate, dependent=self._early
        )


class FusedDeterministic(Fused, Deterministic):
    """Every product and every query by one kernel with one tile, which sums in the same order whatever is beside it."""

    def product(self, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
        return packed_matmul(x, weight, bias, deterministic=True)

    add_linear = Reference.add_linear

    def rope_attend(self, *args: Any) -> torch.Tensor:
        return Reference.rope_attend(self, *args)

    def attend(self, q: torch.Tensor, cache: LayerCache, step: Step, scale: float, window: int | None) -> torch.Tensor:
        return self._attend_chunks(q, cache, step, scale, window)

    route = Deterministic.route
    experts = Deterministic.experts
    mix = Deterministic.mix

    def most_graphed(self, cfg: ModelConfig, blocks: Sequence[Weights]) -> int:
        return 0 if cfg.moe is not None else super().most_graphed(cfg, blocks)

    few = Deterministic.few


def _most_alone(experts: Weight) -> int:
    """Tokens whose experts are multiplied one token at a time: plain ones have a grouped product for more."""
    if operand(experts) is None:
        return 0
    return MOST_TOKENS if isinstance(experts, torch.Tensor) else FEW


def _scales(cache: LayerCache) -> Mapping[str, torch.Tensor] | None:
    return None if cache.spec.bits is None else cache.rows
