"""Tables look up rows of packed matrices."""

import pytest
import torch
from quant.random_blocks import QUANTIZED, random_rows

from genwright.quant.formats import parse_format
from genwright.quant.ggml import repack, tiles
from genwright.quant.table import PackedTable, as_table, matrix_of
from genwright.quant.tiles import Table


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "int8", "int8:g32", "int4:g64:asym"])
def test_rows_of_any_format(name: str) -> None:
    if name in QUANTIZED:
        matrix = repack(torch.from_numpy(random_rows(QUANTIZED[name], 30, 256)), QUANTIZED[name])
    else:
        matrix = parse_format(name).quantize(torch.randn(30, 256))
    table, rows = as_table(matrix, torch.bfloat16), torch.tensor([29, 0, 7, 7])
    assert isinstance(table, PackedTable) and table.shape == (30, 256) and matrix_of(table) is matrix
    wide = matrix.dequantize(torch.bfloat16)
    assert torch.equal(table.look_up(rows), wide[rows]) and torch.equal(table.dequantize(torch.bfloat16), wide)
    copy = table.map(torch.clone)
    assert isinstance(copy, PackedTable) and torch.equal(copy.look_up(rows), wide[rows])


def test_tiles_become_the_cpus_table() -> None:
    table = as_table(tiles(torch.from_numpy(random_rows(QUANTIZED["Q4_K"], 30, 256)), QUANTIZED["Q4_K"]), torch.float32)
    assert isinstance(table, Table) and matrix_of(table) is table
