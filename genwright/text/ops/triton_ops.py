"""The triton backend: fused kernels in Triton and CUDA C++ for NVIDIA GPUs."""

import sys
from collections.abc import Mapping, Sequence
from itertools import takewhile

import torch
from torch import Tensor
from torch.nn.functional import pad

from genwright.kernels.cuda.decode_attention import Scratch, rope_attend, serves
from genwright.kernels.triton.decode_attention import DecodeScratch, decode_attention
from genwright.kernels.triton.latent_attention import LatentScratch, attend
from genwright.kernels.triton.latent_queries import LatentShape, absorb
from genwright.kernels.triton.prefill_attention import prefill_attention
from genwright.kernels.triton.rope import rope_write
from genwright.text.cache.layout import LayerCache
from genwright.text.config import Attention, Mla, ModelConfig
from genwright.text.ops.latent_attention import expand_pages
from genwright.text.ops.protocol import LATENT_EPS, Weights
from genwright.text.ops.step import QueryGroup, Step
from genwright.text.ops.triton_moe import MAX_GROUPED_TOKENS, TritonMixtures

MAX_DECODE_QUERIES = 8  # per sequence, for the attention kernels that split the keys (flash decoding)


class TritonOps(TritonMixtures):
    """Attention, over the products and mixtures of experts of the other modules.

    Kernels use programmatic dependent launch (PDL) where the GPU has it: they start before the previous kernel ends.
    In deterministic mode all products use one kernel, and all queries another, with a tile size that never changes, so
    that sums are always taken in the same order.
    """

    capturable = True

    def __init__(
        self,
        device: torch.device,
        deterministic: bool = False,
        group: torch.distributed.ProcessGroup | None = None,
        fp8_inputs: bool = False,
    ) -> None:
        super().__init__(device, deterministic, group, fp8_inputs)
        self._scratch: dict[tuple[int, int], DecodeScratch] = {}
        self._rope_scratch: dict[tuple[int, int], Scratch] = {}
        self._latent_scratch: dict[int, LatentScratch] = {}

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

    def latent_attend(
        self, q: Tensor, kv: Tensor, weights: Weights, mla: Mla, attention: Attention, cache: LayerCache, step: Step
    ) -> Tensor:
        """The first groups of a step, while they have few queries, are absorbed, and the others expanded.

        In deterministic mode all tokens are absorbed, one by one.
        """
        shape = _latent_shape(q, mla)
        if cache.spec.bits is not None:
            return super().latent_attend(q, kv, weights, mla, attention, cache, step)
        step = step.each_token if self.deterministic else step
        out = q.new_empty(len(q), shape.heads * shape.value)
        few = list(takewhile(lambda group: group.queries <= MAX_DECODE_QUERIES, step.groups))
        first_row = few[-1].rows.stop if few else 0
        if few:
            queries = absorb(
                q[:first_row], kv[:first_row], weights["kv_norm"], weights["kv_b"],
                step.rope_tables[attention.rope or ""], step.positions, step.slots[cache.group], cache.rows["latent"],
                LATENT_EPS, shape, self._pdl, self.deterministic,
            )  # fmt: skip
            for group in few:
                self._attend_latents(queries, weights["kv_b"], attention, cache, group, step, shape, out)
        if first_row < len(q):
            q, latents = self.latent_rows(q[first_row:], kv[first_row:], weights, mla, attention, step, first_row)
            cache.write("latent", step.slots[cache.group][first_row:], latents)
            for group, own in zip(step.groups[len(few) :], _rows_of(q, step.groups[len(few) :]), strict=True):
                k, v, table = expand_pages(cache, group, step, weights["kv_b"], mla, q.dtype)
                starts = torch.arange(0, len(own) + 1, group.queries, device=q.device)
                places = table, step.lengths[group.sequences], starts, group.queries
                own = pad(own, (0, k.shape[-1] - own.shape[-1]))
                mixed = prefill_attention(own, k, v, *places, attention.scale, None, pdl=self._pdl)
                out[group.rows] = mixed.unflatten(1, (shape.heads, -1))[..., : shape.value].flatten(1)
        return out

    def _attend_latents(
        self,
        queries: Tensor,
        kv_b: Tensor,
        attention: Attention,
        cache: LayerCache,
        group: QueryGroup,
        step: Step,
        shape: LatentShape,
        out: Tensor,
    ) -> None:
        rows = group.queries * shape.heads
        if rows not in self._latent_scratch:
            self._latent_scratch[rows] = LatentScratch.allocate(rows, shape.rank, queries.device)
        attend(
            queries[group.rows], cache.rows["latent"], kv_b, step.page_tables[cache.group][group.sequences],
            step.lengths[group.sequences], attention.scale, self._latent_scratch[rows], shape,
            pdl=self._pdl, out=out[group.rows], deterministic=self.deterministic,
        )  # fmt: skip

    def max_graph_tokens(self, cfg: ModelConfig, blocks: Sequence[Weights], cache_bits: int | None) -> int:
        """The most tokens of a step that never waits for the host, so that a CUDA graph can capture it."""
        if cfg.mla is not None and cache_bits is not None:
            return 0
        stacks = [weight for weights in blocks for name, weight in weights.items() if name.startswith("experts.")]
        grouped_by_torch = not self.deterministic and any(isinstance(stack, Tensor) for stack in stacks)
        return MAX_GROUPED_TOKENS if grouped_by_torch else sys.maxsize


def _latent_shape(q: Tensor, mla: Mla) -> LatentShape:
    heads = q.shape[1] // (mla.qk_nope_head_dim + mla.qk_rope_head_dim)  # of this rank
    sizes = mla.qk_nope_head_dim, mla.qk_rope_head_dim, mla.v_head_dim, mla.kv_lora_rank
    return LatentShape(heads, *sizes, mla.rope_interleave)


def _rows_of(q: Tensor, groups: Sequence[QueryGroup]) -> Sequence[Tensor]:
    return [rows.contiguous() for rows in q.split([group.count * group.queries for group in groups])]


def _scales(cache: LayerCache) -> Mapping[str, Tensor] | None:
    return None if cache.spec.bits is None else cache.rows
