"""The triton backend: fused kernels in Triton and CUDA C++ for NVIDIA GPUs."""

import sys
from collections.abc import Mapping, Sequence
from typing import Unpack

import torch
from torch import Tensor
from torch.nn.functional import linear

from genwright.kernels.cuda.decode_attention import Scratch, rope_attend, serves
from genwright.kernels.cuda.fused_linear import CHUNK, MAX_TOKENS, operand, product
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
from genwright.text.ops.moe import MAX_GATHERED_TOKENS
from genwright.text.ops.protocol import Fused, Weights
from genwright.text.ops.step import QueryGroup, Step
from genwright.text.ops.torch_ops import TorchOps

MAX_UNPACKING_ROWS = 128  # of a product that unpacks weights in its kernel; for more it pays to unpack them first
MAX_DECODE_QUERIES = 8  # per sequence, for the attention kernel that splits the keys (flash decoding)


class TritonOps(TorchOps):
    """Steps of few tokens use kernels that read each weight once, in any format; larger ones use cuBLAS.

    Kernels use programmatic dependent launch (PDL) where the GPU has it: they start before the previous kernel ends.
    In deterministic mode all products use one kernel, and all queries another, with a tile size that never changes, so
    that sums are always taken in the same order.
    """

    capturable = True

    def __init__(
        self, device: torch.device, deterministic: bool = False, group: torch.distributed.ProcessGroup | None = None
    ) -> None:
        super().__init__(deterministic, group)
        self._pdl = torch.cuda.get_device_capability(device) >= (9, 0)
        self._scratch: dict[tuple[int, int], DecodeScratch] = {}
        self._rope_scratch: dict[tuple[int, int], Scratch] = {}

    def product(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        if self.deterministic:
            return packed_matmul(x, weight, bias, deterministic=True)
        y = self.fused_linear(x, weight, bias=bias)
        if y is not None:
            return y
        if not isinstance(weight, Packed):
            return linear(x, weight, bias)
        if len(x) <= MAX_UNPACKING_ROWS:
            return packed_matmul(x, weight, bias)
        return linear(x, unpack(weight, x.dtype), bias)

    def fused_linear(
        self, x: Tensor, weight: Weight, bias: Tensor | None = None, **fused: Unpack[Fused]
    ) -> Tensor | None:
        if self.deterministic or len(x) > MAX_TOKENS:
            return None
        matrix = operand(weight)
        tiles = None if matrix is None else tiling(matrix, x, fused.get("gate", False))
        if matrix is None or tiles is None:
            return None
        if not x.is_contiguous() or x.data_ptr() % CHUNK:
            x = x.clone(memory_format=torch.contiguous_format)
        return product(x, matrix, tiles, bias=bias, dependent=self._pdl, **fused)

    def add_product(self, residual: Tensor | None, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        if residual is not None and isinstance(weight, Tensor) and bias is None and not self.deterministic:
            return residual.addmm_(x, weight.t())  # out of place, PyTorch would copy the residual first
        return super().add_product(residual, x, weight, bias)

    def norm(self, x: Tensor, weights: Weights, name: str, eps: float) -> Tensor:
        return rms_norm(x, weights[name], eps, pdl=self._pdl)

    def gate(self, gate_up: Tensor, activation: str) -> Tensor:
        return silu_mul(gate_up, pdl=self._pdl) if activation == "silu" else super().gate(gate_up, activation)

    def rope_attend(self, qkv: Tensor, weights: Weights, attention: Attention, cache: LayerCache, step: Step) -> Tensor:
        """Sequences with one query use one kernel for RoPE, the writes to the cache and attention.

        In a step with prompt chunks these are the first sequences; the others write their rows of the same output.
        """
        k, v, first = cache.rows["k"], cache.rows["v"], step.groups[0]
        kv_heads, head_dim = k.shape[2:]
        heads = qkv.shape[1] // head_dim - 2 * kv_heads
        if self.deterministic or first.queries != 1 or not serves(k, heads):
            return super().rope_attend(qkv, weights, attention, cache, step)
        out = qkv.new_empty(len(qkv), heads * head_dim)
        shape = heads // kv_heads, head_dim
        if shape not in self._rope_scratch:
            self._rope_scratch[shape] = Scratch.allocate(*shape, qkv.device)
        tables = None if attention.rope is None else step.rope_tables[attention.rope]
        norms = (weights["q_norm"], weights["k_norm"]) if "q_norm" in weights else None
        rope_attend(
            qkv[: first.count], tables, step.positions, step.slots[cache.group], step.lengths[: first.count],
            step.page_tables[cache.group], k, v, norms, attention.norm_eps, heads, attention.scale, attention.window,
            self._rope_scratch[shape], self._pdl, out,
        )  # fmt: skip
        if len(step.groups) > 1:
            q = self.rope_write(qkv, weights, attention, cache, step, first.count)
            self._attend_groups(q, attention, cache, step, step.groups[1:], out)
        return out

    def rope_write(
        self,
        qkv: Tensor,
        weights: Weights,
        attention: Attention,
        cache: LayerCache,
        step: Step,
        first_row: int = 0,  # rows before it are neither computed nor written; q has them too, with any content
    ) -> Tensor:
        kv_heads, head_dim = cache.spec.rows["k"]
        cos, sin = (None, None) if attention.rope is None else step.rope_tables[attention.rope]
        heads = qkv.shape[1] // head_dim - 2 * kv_heads
        q = qkv.new_empty(len(qkv), heads, head_dim)
        rope_write(
            qkv[first_row:], cos, sin, step.slots[cache.group][first_row:], cache.rows["k"], cache.rows["v"],
            weights.get("q_norm"), weights.get("k_norm"), attention.norm_eps, heads, kv_heads, head_dim,
            step.positions[first_row:], _scales(cache), self._pdl, q[first_row:],
        )  # fmt: skip
        return q

    def attend(self, q: Tensor, attention: Attention, cache: LayerCache, step: Step) -> Tensor:
        return self._attend_groups(q, attention, cache, step, step.groups, q.new_empty(q.shape).flatten(1))

    def _attend_groups(
        self, q: Tensor, attention: Attention, cache: LayerCache, step: Step, groups: Sequence[QueryGroup], out: Tensor
    ) -> Tensor:
        """Attention of the last groups of a step: flash decoding for as long as they have few queries, then prefill."""
        k, v, scales = cache.rows["k"], cache.rows["v"], _scales(cache)
        table, scale, window = step.page_tables[cache.group], attention.scale, attention.window
        for i, group in enumerate(groups):
            if self.deterministic or group.queries > MAX_DECODE_QUERIES:
                last, most = slice(group.first, None), max(group.queries for group in groups[i:])
                places = table[last], step.lengths[last], step.offsets[last], most
                return prefill_attention(q, k, v, *places, scale, window, scales, pdl=self._pdl, out=out)
            shape = group.queries * q.shape[1] // k.shape[2], q.shape[2]
            if shape not in self._scratch:
                self._scratch[shape] = DecodeScratch.allocate(*shape, q.device)
            decode_attention(
                q[group.rows], k, v, table[group.sequences], step.lengths[group.sequences], group.queries, scale,
                window, self._scratch[shape], scales, pdl=self._pdl, out=out[group.rows],
            )  # fmt: skip
        return out

    def route(self, x: Tensor, weights: Weights, moe: Moe) -> tuple[Tensor, Tensor]:
        if self.deterministic or moe.groups > 1:
            return super().route(x, weights, moe)
        logits, bias = self.linear(x.float(), weights, "router"), weights.get("router.correction")
        sigmoid = moe.scores == "sigmoid"
        return route(logits, bias, moe.top_k, sigmoid=sigmoid, normalise=moe.normalise, scale=moe.scale, pdl=self._pdl)

    def experts(self, x: Tensor, ids: Tensor, gate_up: Weight, down: Weight) -> Tensor:
        """Few tokens are multiplied one at a time, with experts read in place, so that the host need not sort them."""
        first, second = operand(gate_up), operand(down)
        if self.deterministic or len(x) > _max_single_tokens(gate_up) or first is None or second is None:
            return super().experts(x, ids, gate_up, down)
        tiles = tiling(first, x[:1], gate=True, stack=True)
        if tiles is None:
            return super().experts(x, ids, gate_up, down)
        gated = product(x, first, tiles, gate=True, experts=ids, dependent=self._pdl)
        tiles = tiling(second, gated[:1], gate=False, stack=True)
        if tiles is None:
            return super().experts(x, ids, gate_up, down)
        y = product(gated, second, tiles, experts=ids.view(-1, 1), dependent=self._pdl)
        return y.view(*ids.shape, y.shape[1])

    def combine(self, y: Tensor, topk_weights: Tensor) -> Tensor:
        return super().combine(y, topk_weights) if self.deterministic else mix(y, topk_weights, pdl=self._pdl)

    def max_graph_tokens(self, cfg: ModelConfig, blocks: Sequence[Weights]) -> int:
        """The most tokens of a step that never waits for the host, so that a CUDA graph can capture it."""
        if cfg.mla is not None or (self.deterministic and cfg.moe is not None):
            return 0
        stacks = [weight for weights in blocks for name, weight in weights.items() if name.startswith("experts.")]
        return min(map(_max_single_tokens, stacks), default=sys.maxsize)


def _max_single_tokens(experts: Weight) -> int:
    """The most tokens whose experts are multiplied one token at a time; unpacked experts have a grouped product."""
    if operand(experts) is None:
        return 0
    return MAX_TOKENS if isinstance(experts, Tensor) else MAX_GATHERED_TOKENS


def _scales(cache: LayerCache) -> Mapping[str, Tensor] | None:
    return None if cache.spec.bits is None else cache.rows
