"""The triton backend: fused kernels on an NVIDIA GPU, in Triton and CUDA C++."""

import sys
from collections.abc import Mapping, Sequence
from typing import Unpack

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
from genwright.text.config import Attention, ModelConfig, Moe
from genwright.text.ops.moe import FEW
from genwright.text.ops.protocol import Fused, Weights
from genwright.text.ops.step import Step
from genwright.text.ops.torch_ops import TorchOps

MOST_ROWS = 128  # of a product that unpacks weights as it goes; more are worth unpacking them first
MOST_QUERIES = 8  # of a sequence, for attention that is split over its keys


class TritonOps(TorchOps):
    """Few tokens take kernels that read each weight once, whatever its format; many take the library's products.

    Kernels start before the one ahead of them has ended (programmatic dependent launch) and wait for it inside.
    In deterministic mode every product and every query takes one kernel with one tile, which sums in the same order
    whatever is beside it.
    """

    captures = True

    def __init__(
        self, device: torch.device, deterministic: bool = False, group: torch.distributed.ProcessGroup | None = None
    ) -> None:
        super().__init__(deterministic, group)
        self._early = torch.cuda.get_device_capability(device) >= (9, 0)  # whether the GPU has such launches
        self._scratch: dict[tuple[int, int], DecodeScratch] = {}
        self._shared: dict[tuple[int, int], Scratch] = {}

    def product(self, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None) -> torch.Tensor:
        if self.deterministic:
            return packed_matmul(x, weight, bias, deterministic=True)
        y = self.fused_linear(x, weight, bias=bias)
        if y is not None:
            return y
        if not isinstance(weight, Packed):
            return linear(x, weight, bias)
        if len(x) <= MOST_ROWS:
            return packed_matmul(x, weight, bias)
        return linear(x, unpack(weight, x.dtype), bias)

    def fused_linear(
        self, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None = None, **fused: Unpack[Fused]
    ) -> torch.Tensor | None:
        if self.deterministic or len(x) > MOST_TOKENS:
            return None
        known = operand(weight)
        cut = None if known is None else tiling(known, x, fused.get("gate", False))
        if known is None or cut is None:
            return None
        if not x.is_contiguous() or x.data_ptr() % CHUNK:
            x = x.clone(memory_format=torch.contiguous_format)
        return product(x, known, cut, bias=bias, dependent=self._early, **fused)

    def add_product(
        self, residual: torch.Tensor | None, x: torch.Tensor, weight: Weight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        if residual is not None and isinstance(weight, torch.Tensor) and bias is None and not self.deterministic:
            return torch.addmm(residual, x, weight.t())
        return super().add_product(residual, x, weight, bias)

    def norm(self, x: torch.Tensor, weights: Weights, name: str, eps: float) -> torch.Tensor:
        return rms_norm(x, weights[name], eps, pdl=self._early)

    def gate(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        return silu_mul(gate_up, pdl=self._early) if activation == "silu" else super().gate(gate_up, activation)

    def rope_attend(
        self, qkv: torch.Tensor, weights: Weights, attention: Attention, cache: LayerCache, step: Step
    ) -> torch.Tensor:
        """One new token per sequence takes a kernel of its own."""
        k, v = cache.rows["k"], cache.rows["v"]
        kv_heads, head_dim = k.shape[2:]
        heads = qkv.shape[1] // head_dim - 2 * kv_heads
        if self.deterministic or step.queries != 1 or not serves(k, heads):
            return super().rope_attend(qkv, weights, attention, cache, step)
        share = heads // kv_heads
        if (share, head_dim) not in self._shared:
            self._shared[share, head_dim] = Scratch.allocate(share, head_dim, qkv.device)
        return rope_attend(
            qkv,
            None if attention.rope is None else step.rope_tables[attention.rope],
            step.positions,
            step.slots[cache.group],
            step.lengths,
            step.page_tables[cache.group],
            k,
            v,
            (weights["q_norm"], weights["k_norm"]) if "q_norm" in weights else None,
            attention.norm_eps,
            heads,
            attention.scale,
            attention.window,
            self._shared[share, head_dim],
            self._early,
        )

    def rope_write(
        self, qkv: torch.Tensor, weights: Weights, attention: Attention, cache: LayerCache, step: Step
    ) -> torch.Tensor:
        kv_heads, head_dim = cache.spec.rows["k"]
        cos, sin = (None, None) if attention.rope is None else step.rope_tables[attention.rope]
        return rope_write(
            qkv,
            cos,
            sin,
            step.slots[cache.group],
            cache.rows["k"],
            cache.rows["v"],
            weights.get("q_norm"),
            weights.get("k_norm"),
            attention.norm_eps,
            qkv.shape[1] // head_dim - 2 * kv_heads,
            kv_heads,
            head_dim,
            step.positions,
            _scales(cache),
            pdl=self._early,
        )

    def attend(self, q: torch.Tensor, attention: Attention, cache: LayerCache, step: Step) -> torch.Tensor:
        k, v, queries = cache.rows["k"], cache.rows["v"], step.queries
        table, scale, window = step.page_tables[cache.group], attention.scale, attention.window
        if self.deterministic or queries is None or queries > MOST_QUERIES:
            lengths, offsets, most = step.lengths, step.offsets, step.most_queries
            return prefill_attention(
                q, k, v, table, lengths, offsets, most, scale, window, _scales(cache), pdl=self._early
            )
        rows = queries * q.shape[1] // k.shape[2]
        if (rows, q.shape[2]) not in self._scratch:
            self._scratch[rows, q.shape[2]] = DecodeScratch.allocate(rows, q.shape[2], q.device)
        scratch = self._scratch[rows, q.shape[2]]
        return decode_attention(
            q, k, v, table, step.lengths, queries, scale, window, scratch, _scales(cache), pdl=self._early
        )

    def route(self, x: torch.Tensor, weights: Weights, moe: Moe) -> tuple[torch.Tensor, torch.Tensor]:
        if self.deterministic or moe.groups > 1:
            return super().route(x, weights, moe)
        logits, bias = self.linear(x.float(), weights, "router"), weights.get("router.correction")
        sigmoid = moe.scores == "sigmoid"
        return route(
            logits, bias, moe.top_k, sigmoid=sigmoid, normalise=moe.normalise, scale=moe.scale, pdl=self._early
        )

    def experts(self, x: torch.Tensor, ids: torch.Tensor, gate_up: Weight, down: Weight) -> torch.Tensor:
        """Few tokens one by one, each expert read where it lies; of packed ones as many as keep the host out of it."""
        first, second = operand(gate_up), operand(down)
        if self.deterministic or len(x) > _most_alone(gate_up) or first is None or second is None:
            return super().experts(x, ids, gate_up, down)
        cut = tiling(first, x[:1], gate=True, stack=True)
        if cut is None:
            return super().experts(x, ids, gate_up, down)
        gated = product(x, first, cut, gate=True, experts=ids, dependent=self._early)
        cut = tiling(second, gated[:1], gate=False, stack=True)
        if cut is None:
            return super().experts(x, ids, gate_up, down)
        y = product(gated, second, cut, experts=ids.view(-1, 1), dependent=self._early)
        return y.view(*ids.shape, y.shape[1])

    def mix(self, y: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        return super().mix(y, shares) if self.deterministic else mix(y, shares, pdl=self._early)

    def most_graphed(self, cfg: ModelConfig, blocks: Sequence[Weights]) -> int:
        """Tokens of a step that never asks the host, and so can be a CUDA graph."""
        if cfg.mla is not None or (self.deterministic and cfg.moe is not None):
            return 0
        stacks = [weight for weights in blocks for name, weight in weights.items() if name.startswith("experts.")]
        return min(map(_most_alone, stacks), default=sys.maxsize)


def _most_alone(experts: Weight) -> int:
    """Tokens whose experts are multiplied one token at a time: plain ones have a grouped product for more."""
    if operand(experts) is None:
        return 0
    return MOST_TOKENS if isinstance(experts, torch.Tensor) else FEW


def _scales(cache: LayerCache) -> Mapping[str, torch.Tensor] | None:
    return None if cache.spec.bits is None else cache.rows
