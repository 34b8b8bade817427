"""GPTQ (Frantar et al., 2022): columns are rounded one after the other, and what each loses moves to those after it.

The model is handed over as hidden states and blocks; only one block's weights are there at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

from genwright.quant.formats import Format
from genwright.quant.int4 import ZERO, Int4, fit, nearest, pack
from genwright.quant.packed import in_groups

DAMPING = 0.01  # of the Hessian's mean diagonal, added to it
BLOCK = 128  # columns whose errors are spread over the rest at once
Observe = Callable[[str, Tensor], None]  # a matrix's name, and what it is multiplied with [tokens, inputs]


class Block(Protocol):
    """One layer: its matrices [outputs, inputs] that are to be packed, and how it runs with some of them packed."""

    matrices: dict[str, Tensor]

    def run(self, x: Tensor, packed: Mapping[str, Int4], observe: Observe | None = None) -> Tensor:
        """The layer's output of x [tokens, dim]; `observe`, if there is one, is told every matrix's inputs."""
        ...


def calibrate(hidden: list[Tensor], blocks: Iterable[Block], form: Format) -> Iterator[dict[str, Int4]]:
    """Each block's matrices, packed with the inputs that they get from the packed blocks before."""
    for block in blocks:
        hessians: dict[str, Tensor] = {}

        def observe(name: str, x: Tensor, into: dict[str, Tensor] = hessians) -> None:
            x = x.float()
            into[name] = torch.addmm(into[name], x.T, x) if name in into else x.T @ x

        for x in hidden:
            block.run(x, {}, observe)
        packed = {
            name: round_columns(matrix, hessians.pop(name, None), form) for name, matrix in block.matrices.items()
        }
        hidden = [block.run(x, packed) for x in hidden]
        yield packed


def round_columns(weight: Tensor, hessian: Tensor | None, form: Format) -> Int4:
    """Pack [rows, columns] so that tr((w - q) H (w - q)^T) is small; without H, which is X^T X, to nearest.

    Columns with large inputs go first, while the others can still make up for them; a group's scale is fitted before,
    so that the order of the columns is no part of the format.
    """
    assert form.kind == "int4" and form.group is not None
    columns = weight.shape[1]
    scales, minimums = fit(in_groups(weight, form.group), form.asymmetric, torch.float16)
    hessian = torch.eye(columns, device=weight.device) if hessian is None else hessian
    order = hessian.diagonal().argsort(descending=True, stable=True)
    hessian = hessian[order[:, None], order]
    upper = _inverse_factor(hessian)
    del hessian  # as large as the layer itself where it is wide
    w = weight.float()[:, order]
    group = order // form.group
    step = scales.float()[:, group]
    low = step * -ZERO if minimums is None else minimums.float()[:, group]
    q = torch.empty_like(w)
    for first in range(0, columns, BLOCK):
        last = min(first + BLOCK, columns)
        lost = torch.empty_like(w[:, first:last])
        for i in range(first, last):
            at = slice(i, i + 1)
            q[:, at] = nearest(w[:, at], step[:, at], low[:, at])
            error = (w[:, at] - (q[:, at] * step[:, at] + low[:, at])) / upper[i, i]
            w[:, i:last] -= error * upper[i, i:last]
            lost[:, i - first] = error[:, 0]
        w[:, last:] -= lost @ upper[first:last, last:]
    return Int4(pack(q[:, order.argsort()]), scales, minimums, columns, form.group)


def _inverse_factor(hessian: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse of a Hessian, which is damped in place (the paper's step 3)."""
    diagonal = hessian.diagonal()
    mean = diagonal.mean()
    diagonal += torch.where(diagonal == 0, mean.clamp(min=1.0), DAMPING * mean)
    return torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(hessian)), upper=True)
