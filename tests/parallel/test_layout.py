"""Every rank has a stage, and every layer a stage."""

import pytest

from genwright.parallel.layout import Layout


@pytest.mark.parametrize("layout", [Layout(), Layout(4), Layout(1, 3), Layout(2, 3)])
def test_stages_cover_the_layers_and_ranks_the_stages(layout: Layout) -> None:
    for layers in (3, 7, 61):
        stages = [layout.layers(rank, layers) for rank in range(0, layout.ranks, layout.tp)]
        assert [layer for stage in stages for layer in stage] == list(range(layers))
        assert max(map(len, stages)) - min(map(len, stages)) <= 1
    for rank in range(layout.ranks):
        assert rank in layout.stage_ranks(layout.stage(rank)) and len(layout.stage_ranks(0)) == layout.tp
        assert layout.column(rank)[layout.stage(rank)] == rank and len(layout.column(rank)) == layout.pp
