"""Staged pages hold their tier's rows, and new rows reach their tier, in whatever order streams run."""

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from text.cache.invariants import available, check_pool
from text.cache.test_pages import MODELS, STEP, random_tokens, rows
from text.cache.test_tiered import tiered
from torch.utils._python_dispatch import TorchDispatchMode

from genwright.kernels import PAGE
from genwright.placement.tiers import Tiers
from genwright.text.cache import staging
from genwright.text.cache.pages import SequencePages
from genwright.text.cache.staged_pages import Span, stage_pages
from genwright.text.cache.tiered import TieredCache, TieredPages


class Model:
    """Simulates a model's sequences over staged pages: a token's row depends on all tokens up to it."""

    def __init__(self, cache: TieredCache):
        self.cache, self.pool = cache, TieredPages(cache, STEP)
        self.staging = staging.Staging(cache)
        self.live: dict[SequencePages, list[int]] = {}
        self.launch: Callable[[Callable[[], None]], None] = lambda work: work()  # on the compute stream

    def start(self, tokens: list[int]) -> SequencePages | None:
        if (sequence := self.pool.start(tokens)) is not None:
            self.live[sequence] = tokens
        return sequence

    def step(self, work: dict[SequencePages, int], batch: int, accept: bool = True) -> None:
        """Compute tokens of some sequences, `batch` sequences at a time."""
        chunks = []
        for sequence, count in work.items():
            self.pool.extend(sequence, sequence.length + count)
            stop = min(len(self.live[sequence]), sequence.length + count, sequence.capacity())
            if stop > sequence.length:
                chunks.append((sequence, stop))
        parts = [[(seq, seq.length, stop) for seq, stop in chunks[i : i + batch]] for i in range(0, len(chunks), batch)]
        for before, after in pairwise(parts):  # cut a sequence's tokens in two
            sequence, start, stop = before[-1]
            if batch > 1 and stop > start + 1:
                middle = (start + stop) // 2
                before[-1], after[:0] = (sequence, start, middle), [(sequence, middle, stop)]
        spans = [[Span(sequence.tables(), start, stop) for sequence, start, stop in part] for part in parts]
        plans = [stage_pages(self.cache, part) for part in spans]
        layers = range(len(self.cache.spec.layers))
        self.staging.begin(layers, plans)
        for layer in layers:
            for part, plan in zip(parts, plans, strict=True):
                staged = self.staging.take()
                assert staged.layer == layer
                for (sequence, start, stop), table in zip(part, plan.tables, strict=True):
                    work = staged, list(self.live[sequence]), start, stop, table[staged.group], accept
                    self.launch(partial(self.compute, *work))
                self.staging.put()
        self.staging.finish()
        for sequence, stop in chunks if accept else []:
            sequence.length = stop
            self.pool.share(sequence, self.live[sequence])

    def compute(self, staged, tokens, start, stop, table, accept) -> None:
        """Write the new rows after checking all those that a query can see."""
        expected, window = rows(tokens), self.cache.spec.layers[staged.layer].window
        seen = staged.rows["row"][torch.from_numpy(table)].flatten()
        first = 0 if window is None else max(0, start - window + 1)
        if accept:  # else a part before this one has written others
            assert seen[first:start].tolist() == [value + staged.layer for value in expected[first:start]]
        assert not staged.rows["row"][0].any() and seen.isfinite().all()
        slots = torch.tensor([table[i // PAGE] * PAGE + i % PAGE for i in range(start, stop)])
        values = torch.tensor(expected[start:stop], dtype=torch.float64) + staged.layer
        values = values if accept else -values
        staged.write("row", slots, values[:, None])
        staged.write("other", slots, values[:, None].expand(-1, 3))

    def end(self, sequence: SequencePages, how: str) -> None:
        tokens = self.live.pop(sequence)
        self.pool.finish(sequence, tokens) if how == "finish" else getattr(self.pool, how)(sequence)


def run_randomly(run: Model, rng: random.Random, steps: int) -> None:
    """Sequences arrive, compute, propose and leave; no page is lost."""
    known = [rng.choices(range(3), k=300)]
    for _ in range(steps):
        action = rng.random()
        if action < 0.35 or not run.live:
            known.append(random_tokens(rng, known))
            run.start(known[-1])
        elif action < 0.85:
            chosen = rng.sample(list(run.live), rng.randint(1, len(run.live)))
            counts = {sequence: rng.choice([1, 1, 20, STEP]) for sequence in chosen}
            run.step(counts, rng.randint(1, 3), accept=action < 0.75)
        else:
            run.end(rng.choice(list(run.live)), rng.choice(["finish", "finish", "release", "discard"]))
        check_pool(run.pool, list(run.live))
    for sequence in list(run.live):
        run.end(sequence, "finish")
    assert available(run.pool) == sum(tier.pages - tier.spec.null_pages for tier in run.cache.tiers)


@pytest.mark.parametrize("shares", [(34, 33, 33), (0, 50, 50), (0, 0, 100)])
@pytest.mark.parametrize("model", MODELS)
def test_random_steps_read_their_own_rows(model: str, shares: tuple[int, ...], tmp_path: Path) -> None:
    rng = random.Random(str((model, shares)))
    run_randomly(Model(tiered(MODELS[model], shares, 4, tmp_path)), rng, 40)


class Event:
    """Done when the stream has come to it."""

    def __init__(self, stream: "Stream"):
        self.stream, self.done = stream, False

    def synchronize(self) -> None:
        while not self.done:
            self.stream.advance()


class Stream:
    """A GPU's stream, of which nothing runs before somebody waits for it or chance wants it."""

    current: "Stream | None" = None

    def __init__(self, device: Any = None, overlap: bool = True):
        self.queue: deque[Callable[[], None]] = deque()
        STREAMS.append(self)

    def __enter__(self) -> None:
        Stream.current = self

    def __exit__(self, *error: object) -> None:
        Stream.current = None

    def advance(self) -> None:
        self.queue.popleft()()

    def wait(self, event: Event | None) -> None:
        if event is not None:
            self.queue.append(event.synchronize)

    def record(self) -> Event:
        event = Event(self)
        self.queue.append(lambda: setattr(event, "done", True))
        return event


STREAMS: list[Stream] = []


class Deferred(TorchDispatchMode):
    """Copies that are launched on a stream wait there."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if (stream := Stream.current) is None or func._schema.name not in ("aten::copy_", "aten::zero_"):
            return func(*args, **(kwargs or {}))
        stream.queue.append(lambda: func(*args, **(kwargs or {})))
        return args[0]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shares", [(0, 100, 0), (0, 0, 100), (20, 40, 40)])
def test_streams_wait_for_each_other(shares: tuple[int, ...], seed: int, tmp_path: Path, monkeypatch) -> None:
    """The path of a GPU with tensors in CPU memory, and streams that run as late or as early as events allow."""
    rng = random.Random(seed)
    STREAMS.clear()
    monkeypatch.setattr(staging, "CopyStream", Stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(Tiers, "gpu", Tiers.cpu)
    cache = tiered([None, None, 70], shares, 4, tmp_path)
    cache.memory.device = SimpleNamespace(type="cuda")
    run = Model(cache)
    *_, compute = STREAMS

    def launch(work: Callable[[], None]) -> None:
        compute.queue.append(work)
        for stream in rng.sample(STREAMS, rng.randint(0, 3)):
            for _ in range(min(len(stream.queue), rng.choice((0, 1, 50)))):
                stream.advance()

    run.launch = launch
    with Deferred():
        run_randomly(run, rng, 30)


def test_pages_are_staged_once_in_runs(tmp_path):
    cache = tiered([None], (0, 100, 0), 4, tmp_path)
    pool = TieredPages(cache, STEP)
    tokens = list(range(200))
    one = pool.start(tokens, 200)
    one.length = 200
    pool.share(one, tokens)
    two = pool.start([*tokens[:150], 5], 151)
    plan = stage_pages(cache, [Span(one.tables(), 199, 200), Span(two.tables(), two.length, 151)])
    assert plan.pages == [1 + 4 + 1]  # page 0, those of the first, and the other's last
    assert sum(run.count for run in plan.fetched[0]) == 5 and len(plan.fetched[0]) == 1
    assert plan.tables[0][0, :2].tolist() == plan.tables[1][0, :2].tolist()
    assert sorted((rows.first, rows.stop) for rows in plan.written[0]) == [(7, 8), (two.length - 128, 23)]


def test_a_page_without_rows_is_not_fetched(tmp_path):
    cache = tiered([None], (0, 100, 0), 4, tmp_path)
    pool = TieredPages(cache, STEP)
    sequence = pool.start(list(range(200)), 200)
    plan = stage_pages(cache, [Span(sequence.tables(), 0, 200)])
    assert not plan.fetched[0] and sum(run.count for run in plan.fresh[0]) == 4


def test_whole_pages_that_a_step_computes_are_one_copy(tmp_path):
    cache = tiered([None], (0, 100, 0), 4, tmp_path)
    pool = TieredPages(cache, STEP)
    sequence = pool.start(list(range(300)), 300)
    plan = stage_pages(cache, [Span(sequence.tables(), 70, 300)])  # from the second page to the fifth
    assert sorted((rows.first, rows.stop, rows.count) for rows in plan.written[0]) == [
        (0, 44, 1),
        (0, 64, 2),
        (6, 64, 1),
    ]
    whole = next(rows for rows in plan.written[0] if rows.count == 2)
    assert sorted(plan.tables[0][0, 2:4].tolist()) == [whole.staged, whole.staged + 1]
    plan = stage_pages(cache, [Span(sequence.tables(), 65, 200)])
    assert [sum(run.count for run in runs) for runs in (plan.fetched[0], plan.fresh[0])] == [2, 2]
