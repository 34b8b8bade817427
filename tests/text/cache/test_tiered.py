"""Pages over tiers: shares of sequences, prefixes, and no page lost; staging reads and writes each tier's own rows."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from text.cache.invariants import available, check_pool
from text.cache.test_pages import MODELS, STEP, random_tokens, rows

from genwright.kernels import PAGE
from genwright.placement.offload_folder import OffloadFolder
from genwright.placement.tiers import Tiers
from genwright.text.cache.layout import Cache, CacheSpec, LayerSpec
from genwright.text.cache.pages import SequencePages
from genwright.text.cache.staged_pages import Span, stage_pages
from genwright.text.cache.staging import Staging
from genwright.text.cache.tiered import TieredCache, TieredPages, new_pages, tier_pages

CPU = torch.device("cpu")


def tiered(windows: Sequence[int | None], shares: Sequence[int], sequences: int, folder: Path) -> TieredCache:
    """GPU, CPU and disk as three pools of CPU memory and files."""
    spec = CacheSpec([LayerSpec({"row": (1,), "other": (3,)}, window) for window in windows], torch.float64)
    pages = tier_pages(spec, shares, sequences, 400, STEP)
    return TieredCache(spec, pages, shares, Tiers(CPU, False, OffloadFolder(folder, 0)))


class Model:
    """Simulates a model's sequences over staged pages: a token's row depends on all tokens up to it."""

    def __init__(self, cache: TieredCache):
        self.cache, self.pool = cache, TieredPages(cache, STEP)
        self.staging = Staging(cache)
        self.live: dict[SequencePages, list[int]] = {}

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
        parts = [chunks[i : i + batch] for i in range(0, len(chunks), batch)]
        plans = [
            stage_pages(self.cache, [Span(seq.tables(), seq.length, stop) for seq, stop in part]) for part in parts
        ]
        layers = range(len(self.cache.spec.layers))
        self.staging.begin(layers, plans)
        for layer in layers:
            for part, plan in zip(parts, plans, strict=True):
                staged = self.staging.take()
                assert staged.layer == layer
                for (sequence, stop), table in zip(part, plan.tables, strict=True):
                    self.compute(staged, sequence, stop, table[staged.group], accept)
                self.staging.put()
        self.staging.finish()
        for sequence, stop in chunks if accept else []:
            sequence.length = stop
            self.pool.share(sequence, self.live[sequence])

    def compute(self, staged, sequence, stop, table, accept) -> None:
        """Write the new rows after checking all those that a query can see."""
        expected, window = rows(self.live[sequence]), self.cache.spec.layers[staged.layer].window
        start = sequence.length
        seen = staged.rows["row"][torch.from_numpy(table)].flatten()
        first = 0 if window is None else max(0, start - window + 1)
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


@pytest.mark.parametrize("shares", [(34, 33, 33), (0, 50, 50), (0, 0, 100)])
@pytest.mark.parametrize("model", MODELS)
def test_random_steps_read_their_own_rows(model: str, shares: tuple[int, ...], tmp_path: Path) -> None:
    rng = random.Random(str((model, shares)))
    run = Model(tiered(MODELS[model], shares, 4, tmp_path))
    known = [rng.choices(range(3), k=300)]
    for _ in range(40):
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


def test_tiers_fill_by_their_shares(tmp_path):
    pool = TieredPages(tiered([None], (50, 30, 20), 10, tmp_path), STEP)
    for i in range(10):
        assert pool.start([i] * 70, 70) is not None
    assert pool.running == [5, 3, 2]


def test_a_prefix_is_found_in_its_tier_and_a_full_tier_is_passed_over(tmp_path):
    pool = TieredPages(tiered([None], (50, 0, 50), 2, tmp_path), STEP)
    tokens = list(range(300))
    first, second = pool.start(tokens, 300), pool.start(tokens[::-1], 300)
    second.length = 300
    pool.finish(second, tokens[::-1])
    again = pool.start(tokens[::-1], 300)
    assert again.first_page == second.first_page != first.first_page and again.length == 299
    assert pool.start(tokens, 300) is None
    pool.release(first)
    assert pool.start([*tokens[::-1], *tokens[:100]], 400).first_page == first.first_page


def test_every_tier_with_a_share_holds_the_longest_sequence():
    spec = CacheSpec([LayerSpec({"row": (1,)}, 70), LayerSpec({"row": (1,)})], torch.float32)
    assert tier_pages(spec, (98, 2, 0), 4, 400, STEP) == [4 * 11 + 1, 11 + 1, 0]


def test_one_cache_has_one_pool():
    cache = Cache(CacheSpec([LayerSpec({"row": (1,)})], torch.float32), 4, CPU)
    assert new_pages(cache, STEP).cache is cache


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
    assert [(rows.first, rows.stop) for rows in plan.written[0]] == [(7, 8), (two.length - 128, 23)]


def test_a_page_without_rows_is_not_fetched(tmp_path):
    cache = tiered([None], (0, 100, 0), 4, tmp_path)
    pool = TieredPages(cache, STEP)
    sequence = pool.start(list(range(200)), 200)
    plan = stage_pages(cache, [Span(sequence.tables(), 0, 200)])
    assert not plan.fetched[0] and sum(run.count for run in plan.fresh[0]) == 4
    plan = stage_pages(cache, [Span(sequence.tables(), 65, 200)])
    assert [sum(run.count for run in runs) for runs in (plan.fetched[0], plan.fresh[0])] == [2, 2]
