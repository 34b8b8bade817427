"""gpt-fast's int4 weights in groups of columns: w = (q - 8) s + z, in the tiles of torch's GPU kernel."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from genwright.dropin.transformer.model_args import find_multiple
from genwright.errors import UserError
from genwright.quant.formats import Format
from genwright.quant.int4 import ZERO, Int4, nearest, pack, unpack
from genwright.quant.packed import in_groups
from genwright.quant.tinygemm import columns, repack, tile

GROUPS, TILES = (32, 64, 128, 256), (2, 4, 8)
PADDED = 1024  # columns of a matrix whose own number does not fit are padded to a multiple of this


@dataclass(frozen=True)
class Tinygemm(Format):
    """The grid of gpt-fast's files: scales and zeros are bfloat16, and a zero is the value of q = 8."""

    def quantize(self, weight: Tensor) -> Int4:
        assert self.group is not None
        groups = in_groups(weight, self.group)
        low, high = groups.amin(dim=-1), groups.amax(dim=-1)
        scales = (high - low).clamp(min=1e-6) / 15
        zeros = (low + scales * ZERO).bfloat16()
        scales = scales.bfloat16()
        minimums = zeros.float() - ZERO * scales.float()
        q = nearest(groups, scales[..., None], minimums[..., None])
        return Int4(pack(q.flatten(-2)[..., : weight.shape[-1]]), scales, minimums, weight.shape[-1], self.group)


def tinygemm(group: int) -> Tinygemm:
    return Tinygemm("int4", group, asymmetric=True)


def fits(inputs: int, group: int, inner_k_tiles: int) -> bool:
    """Whether groups and tiles divide a row."""
    return inputs % group == 0 and inputs % (inner_k_tiles * 16) == 0


def padded(inputs: int, group: int, inner_k_tiles: int) -> int:
    return inputs if fits(inputs, group, inner_k_tiles) else find_multiple(inputs, PADDED)


class WeightOnlyInt4Linear(nn.Module):
    weight: Tensor
    scales_and_zeros: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
        groupsize: int = 128,
        inner_k_tiles: int = 8,
        padding: bool = True,
    ):
        super().__init__()
        if bias or out_features % 8:
            raise UserError(f"An int4 matrix has no bias and a multiple of 8 outputs, not {out_features}.")
        self.origin_in_features, self.padding = in_features, padding
        self.in_features = find_multiple(in_features, PADDED) if padding else in_features
        self.out_features, self.groupsize, self.inner_k_tiles = out_features, groupsize, inner_k_tiles
        tiles = out_features // 8, self.in_features // (inner_k_tiles * 16), 32, inner_k_tiles // 2
        pairs = self.in_features // groupsize, out_features, 2
        self.register_buffer("weight", torch.empty(tiles, dtype=torch.int32))
        self.register_buffer("scales_and_zeros", torch.empty(pairs, dtype=torch.bfloat16))

    def forward(self, input: Tensor) -> Tensor:
        """torch's kernel on a GPU; elsewhere the matrix is unpacked."""
        x = input.to(torch.bfloat16)
        if not self.weight.is_cuda:
            inputs = min(x.shape[-1], columns(self.weight))
            return repack(self.weight, self.scales_and_zeros, inputs, self.groupsize).linear(x)
        x = pad(x, (0, self.in_features - x.shape[-1]))
        y = torch.ops.aten._weight_int4pack_mm(x.flatten(0, -2), self.weight, self.groupsize, self.scales_and_zeros)
        return y.view(*x.shape[:-1], self.out_features)


class WeightOnlyInt4QuantHandler:
    """Quantizes a model's matrices, and replaces its modules by int4 ones."""

    def __init__(self, mod: Any, groupsize: int = 128, inner_k_tiles: int = 8, padding: bool = True):
        if groupsize not in GROUPS:
            raise UserError(f"groupsize must be one of {', '.join(map(str, GROUPS))}, not {groupsize}.")
        if inner_k_tiles not in TILES:
            raise UserError(f"inner_k_tiles must be one of {', '.join(map(str, TILES))}, not {inner_k_tiles}.")
        if mod.model_config.moe is not None:
            raise UserError("gpt-fast has int8 experts alone; quantize Mixtral to int8.")
        self.mod, self.groupsize, self.inner_k_tiles, self.padding = mod, groupsize, inner_k_tiles, padding

    @torch.no_grad()
    def create_quantized_state_dict(self, use_cuda: bool = True) -> dict[str, Tensor]:
        """`use_cuda` computes on a GPU if there is one; the result is the same."""
        device = "cuda" if use_cuda and torch.cuda.is_available() else "cpu"
        state: dict[str, Tensor] = self.mod.state_dict()
        for name, linear in self.linears():
            print(f"linear: {name}, in={linear.in_features}, out={linear.out_features}")
            weight = linear.weight.to(device, torch.bfloat16)
            state |= self.tensors(name, tinygemm(self.groupsize).quantize(self.widened(weight)))
        return state

    def convert_for_runtime(self) -> Any:
        for name, linear in list(self.linears()):
            owner, _, last = name.rpartition(".")
            widen = not fits(linear.in_features, self.groupsize, self.inner_k_tiles)
            new = WeightOnlyInt4Linear(
                linear.in_features,
                linear.out_features,
                groupsize=self.groupsize,
                inner_k_tiles=self.inner_k_tiles,
                padding=widen,
            )
            setattr(self.mod.get_submodule(owner), last, new)
        return self.mod

    def linears(self) -> list[tuple[str, nn.Linear]]:
        """The modules that are quantized; without padding, those whose rows are divided by groups and tiles."""
        return [
            (name, module)
            for name, module in self.mod.named_modules()
            if isinstance(module, nn.Linear)
            and (self.padding or fits(module.in_features, self.groupsize, self.inner_k_tiles))
        ]

    def widened(self, weight: Tensor) -> Tensor:
        """A matrix with columns of zeros behind its own, if groups and tiles do not divide them."""
        return pad(weight, (0, padded(weight.shape[1], self.groupsize, self.inner_k_tiles) - weight.shape[1]))

    def tensors(self, name: str, packed: Int4) -> dict[str, Tensor]:
        """The two tensors of a matrix, as a checkpoint has them, wide enough for whole groups and tiles."""
        assert packed.minimums is not None
        width = padded(packed.inputs, self.groupsize, self.inner_k_tiles)
        zeros = (packed.minimums + ZERO * packed.scales.float()).bfloat16()
        pairs = torch.stack([packed.scales.bfloat16(), zeros], dim=-1).transpose(0, 1)
        pairs = pad(pairs, (0, 0, 0, 0, 0, width // self.groupsize - len(pairs)))
        q = pad(unpack(packed.words)[:, : packed.inputs], (0, width - packed.inputs))
        return {f"{name}.weight": tile(q, self.inner_k_tiles).cpu(), f"{name}.scales_and_zeros": pairs.cpu()}
