"""Drawn tokens as the next step's inputs, against the same sequences laid out by the host."""

import pytest
import torch

pytest.importorskip("triton")

from genwright.kernels.sampling import POSITION
from genwright.kernels.triton.feed_back import accept, feed_back
from genwright.text.ops.step import Chunk, StepBuffers


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("queries", [1, 3])
def test_a_step_advances_as_the_host_would_lay_it_out(groups: int, queries: int, device: str) -> None:
    known, counts, most = [63, 5, 130], [3, 1, 4], 4
    tables = [[[10 * row + page + 100 * group for page in range(4)] for group in range(groups)] for row in range(3)]
    ours, theirs = (StepBuffers(16, 4, 4, torch.device(device), groups) for _ in range(2))
    drawn = torch.randint(0, 1000, (3, most), device=device)
    drawn[2, 1] = -1  # a NaN
    bounds = torch.tensor([[n, n + count - 1] for n, count in zip(known, counts, strict=True)], device=device)
    settings = torch.zeros(3, 6, dtype=torch.int32, device=device)
    settings[:, POSITION] = torch.tensor(known)
    tokens = torch.full((3, most), -7, device=device)
    ours.write([Chunk([0] * queries, n - queries, table) for n, table in zip(known, tables, strict=True)], further=most)
    for column in range(most):
        step = ours.tokens, ours.positions, ours.lengths, ours.offsets
        feed_back(drawn[:, column].contiguous(), bounds, settings, tokens, step, ours.slots, ours.page_tables)
        fed = [row for row in range(3) if column < counts[row] - 1]
        assert (ours.slots[:, [row for row in range(3) if row not in fed]] == -1).all()
        if not fed:
            continue
        ids = [max(int(drawn[row, column]), 0) for row in fed]
        theirs.write([Chunk([token], known[row] + column, tables[row]) for row, token in zip(fed, ids, strict=True)])
        for name in ("tokens", "positions", "lengths"):
            assert torch.equal(getattr(ours, name)[fed], getattr(theirs, name)[: len(fed)]), name
        assert torch.equal(ours.slots[:, fed], theirs.slots[:, : len(fed)])
        assert ours.offsets[:4].tolist() == [0, 1, 2, 3]
        assert [int(settings[row, POSITION]) for row in fed] == [known[row] + column + 1 for row in fed]
    for row, count in enumerate(counts):
        assert tokens[row].tolist() == drawn[row, :count].tolist() + [-7] * (most - count)


@pytest.mark.parametrize("groups", [1, 2])
def test_accepted_tokens_move_a_step_on_as_the_host_would_lay_it_out(groups: int, device: str) -> None:
    known, accepted, proposals = [62, 5, 127, 9], [3, 0, 2, 1], [4, 2, 2, 3]
    tables = [[[10 * row + page + 100 * group for page in range(4)] for group in range(groups)] for row in range(4)]
    ours, theirs = (StepBuffers(16, 4, 4, torch.device(device), groups) for _ in range(2))
    proposed = torch.randint(0, 1000, (4, 8), device=device)
    rows, verified = list[int](), list[list[int]]()
    for row, (right, count) in enumerate(zip(accepted, proposals, strict=True)):
        verified.append([len(rows), 8 * row, count])
        rows += [*proposed[row, :right].tolist(), 2000 + row, *range(3000, 3000 + count - right)]
    rows[verified[3][0] + 1] = -1  # a NaN
    bounds = torch.tensor([[n + 1, n + 4] for n in known], device=device)
    settings = torch.zeros(4, 6, dtype=torch.int32, device=device)
    settings[:, POSITION] = bounds[:, 0]
    ours.write([Chunk([70 + row, 0], known[row] - 1, tables[row]) for row in range(4)], further=9)
    accept(
        torch.tensor(verified, device=device), torch.tensor(rows, device=device), proposed.view(-1), bounds, settings,
        (ours.tokens, ours.positions, ours.lengths), ours.slots, ours.page_tables,
    )  # fmt: skip
    chunks = []
    for row, right in enumerate(accepted):
        sequence = [70 + row, *proposed[row, :right].tolist(), max(rows[verified[row][0] + right], 0)]
        chunks.append(Chunk(sequence[-2:], known[row] + right - 1, tables[row]))
    theirs.write(chunks, further=9)
    for name in ("tokens", "positions", "lengths", "offsets", "logit_rows", "slots"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    assert bounds.tolist() == [[n + a + 1, n + a + 4] for n, a in zip(known, accepted, strict=True)]
    assert settings[:, POSITION].tolist() == [n + a + 1 for n, a in zip(known, accepted, strict=True)]
