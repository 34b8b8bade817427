"""The layout of a step: where each token's rows go, which pages a sequence reads, and what a graph is padded with."""

import random

import pytest
import torch

from genwright.kernels import PAGE
from genwright.text.ops.step import Chunk, StepBuffers, padding

CPU = torch.device("cpu")


def buffers(groups: int = 1, sequences: int = 8) -> StepBuffers:
    return StepBuffers(tokens=600, sequences=sequences, pages=8, device=CPU, groups=groups)


def random_chunks(rng: random.Random, count: int, groups: int) -> list[Chunk]:
    free = list(range(1, 500))
    rng.shuffle(free)
    chunks = []
    for _ in range(count):
        start, size = rng.randint(0, 200), rng.choice([1, 1, 5, 60])
        pages = -(-(start + size) // PAGE) + rng.randint(0, 1)  # perhaps one more, for what comes next
        tables = [[free.pop() for _ in range(pages)] for _ in range(groups)]
        chunks.append(Chunk([rng.randrange(99) for _ in range(size)], start, tables, rng.choice([0, 1, 1, size])))
    return chunks


@pytest.mark.parametrize("groups", [1, 6])
def test_every_token_has_its_position_and_its_slots(groups: int) -> None:
    rng, storage = random.Random(groups), buffers(groups)
    for _ in range(20):  # one after the other in the same storage: nothing of the step before may remain
        chunks = random_chunks(rng, rng.randint(1, 8), groups)
        step = storage.fill(chunks)
        assert step.tokens.tolist() == [token for chunk in chunks for token in chunk.tokens]
        assert len(step.slots) == len(step.page_tables) == groups
        row = 0
        logit_rows = []
        for index, chunk in enumerate(chunks):
            assert step.offsets[index] == row
            assert step.lengths[index] == chunk.start + len(chunk.tokens)
            for group, table in enumerate(chunk.tables):
                used = -(-int(step.lengths[index]) // PAGE)
                assert step.page_tables[group][index, :used].tolist() == list(table[:used])
                for place in range(len(chunk.tokens)):
                    position = chunk.start + place
                    assert step.positions[row + place] == position
                    assert step.slots[group][row + place] == table[position // PAGE] * PAGE + position % PAGE
            row += len(chunk.tokens)
            logit_rows += range(row - chunk.logits, row)
        assert step.offsets.tolist()[-1] == row and step.logit_rows.tolist() == logit_rows


def test_neighbours_with_equally_many_queries_form_a_group() -> None:
    chunks = [Chunk([1] * count, 70 * (count == 1), [[1, 2, 3]]) for count in (1, 1, 5, 5, 5, 1)]
    step = buffers().fill(chunks)
    found = [(g.first, g.count, g.queries, g.first_row, g.length) for g in step.groups]
    assert found == [(0, 2, 1, 0, 71), (2, 3, 5, 2, 5), (5, 1, 1, 17, 71)]
    assert [g.rows for g in step.groups] == [slice(0, 2), slice(2, 17), slice(17, 18)]
    assert [g.sequences for g in step.groups] == [slice(0, 2), slice(2, 5), slice(5, 6)]


@pytest.mark.parametrize("queries", [1, 3])
def test_padding_writes_nowhere_and_reads_nothing(queries: int) -> None:
    storage = buffers(groups=2)
    storage.fill(random_chunks(random.Random(1), 8, 2))
    chunks = [Chunk([7] * queries, 100, [[4, 5], [6, 9]], logits=queries) for _ in range(3)]
    step = storage.view(storage.write([*chunks, padding(queries, queries)]).for_graph())
    assert len(step.tokens) == len(step.logit_rows) == 4 * queries
    assert step.lengths.tolist() == [100 + queries] * 3 + [0]
    assert step.offsets.tolist() == [queries * place for place in range(5)]
    assert all(slots[3 * queries :].tolist() == [-1] * queries for slots in step.slots)
    assert [(group.count, group.queries) for group in step.groups] == [(4, queries)]
    assert all(table.shape == (4, 8) for table in step.page_tables), "a graph has the whole page table"
    assert [table[:3, :2].tolist() for table in step.page_tables] == [[[4, 5]] * 3, [[6, 9]] * 3]


def test_a_graph_of_prompt_chunks_is_padded_between_and_after_them() -> None:
    storage = buffers(groups=2)
    storage.fill(random_chunks(random.Random(1), 8, 2))
    decoding, prompt = Chunk([7], 100, [[4, 5], [6, 9]]), Chunk([8] * 5, 62, [[1, 2], [3, 8]], logits=1)
    layout = storage.write([decoding, padding(1), prompt, padding(3), padding(0)], least_logits=4)
    step = storage.view(layout)
    assert step.tokens.tolist() == [7, 0, *[8] * 5, 0, 0, 0]
    assert step.positions.tolist() == [100, 0, *range(62, 67), 0, 0, 0]
    assert step.lengths.tolist() == [101, 0, 67, 0, 0] and step.offsets.tolist() == [0, 1, 2, 7, 10, 10]
    pages = [(5, 1, 2), (9, 3, 8)]
    for slots, (own, first, second) in zip(step.slots, pages, strict=True):
        written = [PAGE * first + 62, PAGE * first + 63, PAGE * second, PAGE * second + 1, PAGE * second + 2]
        assert slots.tolist() == [PAGE * own + 36, -1, *written, -1, -1, -1]
    assert step.logit_rows.tolist() == [0, 6] and storage.logit_rows[:4].tolist() == [0, 6, 0, 0]
    assert [table[2, :2].tolist() for table in step.page_tables] == [[1, 2], [3, 8]]


def test_a_steps_tensors_lie_where_those_of_the_step_before_lay() -> None:
    storage, rng = buffers(groups=2), random.Random(2)
    steps = [storage.fill(random_chunks(rng, 4, 2)) for _ in range(2)]
    for name in ("tokens", "positions", "lengths", "offsets", "logit_rows"):
        assert len({getattr(step, name).data_ptr() for step in steps}) == 1
    for name in ("slots", "page_tables"):
        assert len({tuple(each.data_ptr() for each in getattr(step, name)) for step in steps}) == 1


def test_rope_tables_are_looked_up_by_position_and_kind() -> None:
    angles = torch.arange(300.0)[:, None, None]
    storage = StepBuffers(600, 8, 8, CPU, rope_tables={"global": (angles, -angles), "local": (2 * angles, angles)})
    step = storage.fill([Chunk([1] * 3, 100, [[1, 2]]), Chunk([1], 7, [[3]])])
    assert step.rope("global")[0].flatten().tolist() == [100, 101, 102, 7]
    assert step.rope("local")[0].flatten().tolist() == [200, 202, 204, 14]


def test_only_wanted_rows_are_needed_after_the_last_layers_attention() -> None:
    chunks = [Chunk([1] * 5, 0, [[1]], 2), Chunk([1] * 3, 0, [[2]], 0), Chunk([1], 9, [[3]])]
    step = StepBuffers(tokens=600, sequences=8, pages=8, device=CPU, last_layer=3).fill(chunks)
    x, attended = torch.arange(9.0), torch.arange(9.0) + 100
    assert [rows.tolist() for rows in step.needed(3, x, attended)] == [[3, 4, 8], [103, 104, 108]]
    assert step.needed(2, x, attended) == (x, attended)
    assert buffers().fill(chunks).needed(3, x, attended) == (x, attended)
