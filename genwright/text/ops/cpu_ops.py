"""The cpu backend: our C++ kernels where they are faster than PyTorch, and PyTorch elsewhere."""

from typing import Unpack

import torch.distributed as dist
from torch import Tensor

from genwright.kernels.cpu.attention import paged_attention, rope_write
from genwright.kernels.cpu.calls import Recording
from genwright.kernels.cpu.fused_linear import How, few_tokens_linear, few_tokens_operand, operand
from genwright.kernels.cpu.tile_linear import look_up
from genwright.quant.packed import Weight
from genwright.quant.table import PackedTable
from genwright.quant.tiles import Table
from genwright.text.cache.layout import LayerCache
from genwright.text.config import Attention
from genwright.text.ops.protocol import Fused, Weights
from genwright.text.ops.step import QueryGroup, Step
from genwright.text.ops.torch_ops import TorchOps


class CpuOps(TorchOps):
    """One C++ call computes a matrix product with the norm before it and the bias, gate and residual after it."""

    def __init__(self, deterministic: bool = False, group: dist.ProcessGroup | None = None, exact_inputs: bool = False):
        super().__init__(deterministic, group)
        self.exact_inputs = exact_inputs
        self.recording: Recording | None = None  # of the kernel calls, while a step is recorded

    @property
    def _how(self) -> How:
        return {"exact": self.exact_inputs, "recording": self.recording}

    def product(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        if not self.deterministic:
            return few_tokens_linear(x, weight, bias, **self._how)
        found = operand(x, weight, bias)  # its kernel computes each row alone, whatever the number of rows
        return super().product(x, weight, bias) if found is None else found.product(x, bias)

    def look_up(self, rows: Tensor, table: Tensor | Table | PackedTable) -> Tensor:
        found = look_up(rows, table, self.recording) if isinstance(table, Table) else None
        return super().look_up(rows, table) if found is None else found

    def fused_linear(
        self, x: Tensor, weight: Weight, bias: Tensor | None = None, **fused: Unpack[Fused]
    ) -> Tensor | None:
        """None in deterministic mode, because a row's bits would depend on the number of rows."""
        found = None if self.deterministic else few_tokens_operand(x, weight, bias)
        if found is None or (fused.get("gate") and not found.takes_gate()):
            return None
        return found.product(x, bias, **fused, **self._how)

    def rope_write(self, qkv: Tensor, weights: Weights, attention: Attention, cache: LayerCache, step: Step) -> Tensor:
        """Deterministic mode uses the kernel too, because its bits equal PyTorch's."""
        if cache.spec.bits is None and attention.rope is not None and "q_norm" not in weights:
            k, v, tables = cache.rows["k"], cache.rows["v"], step.rope_tables[attention.rope]
            q = rope_write(qkv, tables, step.positions, step.slots[cache.group], k, v, self.recording)
            if q is not None:
                return q
        return super().rope_write(qkv, weights, attention, cache, step)

    def attend_group(self, q: Tensor, attention: Attention, cache: LayerCache, group: QueryGroup, step: Step) -> Tensor:
        if cache.spec.bits is None:
            table, lengths = step.page_tables[cache.group][group.sequences], step.lengths[group.sequences]
            k, v = cache.rows["k"], cache.rows["v"]
            output = paged_attention(q, k, v, table, lengths, attention.scale, attention.window, self.recording)
            if output is not None:
                return output
        return super().attend_group(q, attention, cache, group, step)
