"""The trial of AMX, run as a child process because a broken AMX may crash it: products by VNNI and by AMX, timed."""

import ctypes
import json
import sys
from time import perf_counter

import torch

from genwright.kernels.cpu.amx import has_amx_int8
from genwright.kernels.cpu.tile_linear import SCALES, TileOperand
from genwright.quant.tiles import BLOCK, Codes, Scales, Tiles, tile

SIDE = 1024  # rows and columns of the matrix
TOKENS = 256
ROUNDS = 5


def random_tiles(bits: int, table: bool, scales: str, minimums: bool, group: int) -> Tiles:
    """A matrix for `tile_linear.kernel` of the same arguments."""
    dtype, factors = next(dtype for dtype, name in SCALES.items() if name == scales), scales == "FACTORS"

    def numbers(dtype: torch.dtype, columns: int) -> torch.Tensor:
        return torch.randint(1, 64, (SIDE, SIDE // columns)).to(dtype)

    scaled = Scales(
        numbers(dtype, group),
        numbers(dtype, group) if minimums else None,
        numbers(torch.float16, BLOCK) if factors else None,
        numbers(torch.float16, BLOCK) if factors and minimums else None,
    )
    q = torch.randint(0, 1 << bits, (SIDE, SIDE), dtype=torch.uint8)
    entries = tuple(range(0, 256, 16)) if table else None
    return tile(Codes(q, bits, group, scaled, zero=1 << bits - 1, table=entries))


def compare(library: ctypes.CDLL, weight: Tiles) -> dict[str, float | bool]:
    """Whether AMX always gives VNNI's bits, and the seconds of the fastest product of each."""
    operands = {by: TileOperand(weight, library, amx=by == "amx") for by in ("vnni", "amx")}
    equal, seconds, x = True, dict.fromkeys(operands, float("inf")), torch.randn(TOKENS, SIDE)
    for _ in range(ROUNDS):
        products = []
        for by, operand in operands.items():
            started = perf_counter()
            products.append(operand.product(x, exact=False))
            seconds[by] = min(seconds[by], perf_counter() - started)
        equal = equal and torch.equal(*products)
    return {"equal": equal, **seconds}


def main(library: str, kind: str) -> None:
    """Print the comparison as JSON; `kind` has the arguments of `tile_linear.kernel` as JSON."""
    has_amx_int8()  # asks the system for the permission, which a new program does not inherit
    torch.set_num_threads(1)  # other processes disturb one thread least
    torch.manual_seed(0)
    print(json.dumps(compare(ctypes.CDLL(library), random_tiles(*json.loads(kind)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
