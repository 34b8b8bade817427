"""Mixtures of experts of the triton backend."""

from torch import Tensor

from genwright.kernels.cuda import planes_linear
from genwright.kernels.cuda.fused_linear import MAX_TOKENS, operand, product
from genwright.kernels.cuda.planes_linear import planes_product
from genwright.kernels.cuda.tilings import tiling
from genwright.kernels.triton.bit_planes import grouped_planes_matmul
from genwright.kernels.triton.experts import mix, norm_router, route
from genwright.kernels.triton.fp8_experts import grouped_fp8_matmul, serves
from genwright.kernels.triton.grouped_matmul import Groups, group_pairs, grouped_matmul
from genwright.placement.weight_stream import Arriving
from genwright.quant.bit_planes import BitPlanes
from genwright.quant.fp8 import Fp8Blocks
from genwright.quant.packed import Weight
from genwright.text.config import Moe
from genwright.text.ops.protocol import Weights
from genwright.text.ops.triton_products import TritonProducts

MAX_PAIRED_TOKENS = 4  # whose experts are read for each pair of token and expert; more tokens share what is read
MAX_GROUPED_TOKENS = 512  # of our grouped product with unpacked experts; for more, PyTorch's is faster


class TritonMixtures(TritonProducts):
    """Routing and experts never wait for the host, except PyTorch's grouped product for many tokens.

    In deterministic mode the grouped product has tiles that never change.
    """

    def add_moe(self, x: Tensor, weights: Weights, norm: str, eps: float, moe: Moe) -> Tensor:
        """On one rank, the residual and the shared experts are added by the kernels of the last products."""
        if self.group is not None or isinstance(weights, Arriving) or moe.shared_gate:
            return super().add_moe(x, weights, norm, eps, moe)
        if len(x) <= MAX_TOKENS and not self.deterministic:
            normed, logits = norm_router(x, weights[norm], weights["router"], eps, pdl=self._pdl)
            topk_weights, ids = self._choose(logits, weights, moe)
        else:
            normed = self.norm(x, weights, norm, eps)
            topk_weights, ids = self.route(normed, weights, moe)
        gate_up, down = (weights[f"experts.{name}"].unflatten(0, (moe.experts, -1)) for name in ("gate_up", "down"))
        y = self.experts(normed, ids, gate_up, down)
        if moe.shared_dim:
            gated = self.fused_linear(normed, weights["shared.gate_up"], gate=True)
            if gated is None:
                gated = self.gate(self.linear(normed, weights, "shared.gate_up"), "silu")
            x = self.add_linear(x, gated, weights, "shared.down")
        return mix(y, topk_weights, x, pdl=self._pdl)

    def route(self, x: Tensor, weights: Weights, moe: Moe) -> tuple[Tensor, Tensor]:
        return self._choose(self.linear(x.float(), weights, "router"), weights, moe)

    def _choose(self, logits: Tensor, weights: Weights, moe: Moe) -> tuple[Tensor, Tensor]:
        return route(
            logits, weights.get("router.correction"), moe.top_k, sigmoid=moe.scores == "sigmoid",
            normalise=moe.normalise, scale=moe.scale, groups=moe.groups, top_groups=moe.top_groups, pdl=self._pdl,
        )  # fmt: skip

    def experts(self, x: Tensor, ids: Tensor, gate_up: Weight, down: Weight) -> Tensor:
        """The experts of very few tokens are read once per token, those of more tokens once."""
        if len(x) > MAX_GROUPED_TOKENS and isinstance(gate_up, Tensor) and not self.deterministic:
            return super().experts(x, ids, gate_up, down)
        paired = len(x) <= MAX_PAIRED_TOKENS and not self.deterministic
        y = self._paired_experts(x, ids, gate_up, down) if paired else None
        if y is None:
            groups = group_pairs(ids, gate_up.shape[0], pdl=self._pdl)
            share = 1 if self.deterministic else -(-ids.numel() // gate_up.shape[0])  # pairs of an expert
            gated = self._grouped_product(x, gate_up, groups, share, gate=True)
            y = self._grouped_product(gated, down, groups, share)
        return y.view(*ids.shape, y.shape[1])

    def _grouped_product(self, x: Tensor, weight: Weight, groups: Groups, share: int, gate: bool = False) -> Tensor:
        if isinstance(weight, BitPlanes):
            y = grouped_planes_matmul(x, weight, groups, share, pdl=self._pdl)
            return self.gate(y, "silu") if gate else y
        rounded = self.fp8_inputs and self._pdl and not self.deterministic  # the GPUs that have PDL multiply fp8
        if rounded and isinstance(weight, Fp8Blocks) and serves(weight):
            return grouped_fp8_matmul(x, weight, groups, share, gate, pdl=True)
        return grouped_matmul(x, weight, groups, share, gate, pdl=self._pdl)

    def _paired_experts(self, x: Tensor, ids: Tensor, gate_up: Weight, down: Weight) -> Tensor | None:
        """[pairs, dim], or None if the kernel cannot read the weights."""
        if isinstance(gate_up, BitPlanes) and isinstance(down, BitPlanes):
            return self._paired_planes(x, ids, gate_up, down)
        first, second = operand(gate_up), operand(down)
        tiles = None if first is None else tiling(first, x[:1], gate=True, stack=True)
        if first is None or second is None or tiles is None:
            return None
        gated = product(x, first, tiles, gate=True, experts=ids, dependent=self._pdl)
        tiles = tiling(second, gated[:1], gate=False, stack=True)
        if tiles is None:
            return None
        return product(gated, second, tiles, experts=ids.view(-1, 1), dependent=self._pdl)

    def _paired_planes(self, x: Tensor, ids: Tensor, gate_up: BitPlanes, down: BitPlanes) -> Tensor | None:
        gated = None
        if planes_linear.serves(x[:1], gate_up):
            gated = planes_product(x.contiguous(), gate_up, gate=True, experts=ids, dependent=self._pdl)
        if gated is None or not planes_linear.serves(gated[:1], down):
            return None
        return planes_product(gated, down, experts=ids.view(-1, 1), dependent=self._pdl)

    def combine(self, y: Tensor, topk_weights: Tensor) -> Tensor:
        return mix(y, topk_weights, pdl=self._pdl)
