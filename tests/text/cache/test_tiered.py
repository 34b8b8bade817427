"""Pages over tiers: shares of sequences, and prefixes; tests/text/cache/test_staging.py checks that none is lost."""

from collections.abc import Sequence
from pathlib import Path

import torch
from text.cache.test_pages import STEP

from genwright.placement.offload_folder import OffloadFolder
from genwright.placement.tiers import Tiers
from genwright.text.cache.layout import Cache, CacheSpec, LayerSpec
from genwright.text.cache.tiered import TieredCache, TieredPages, new_pages, tier_pages

CPU = torch.device("cpu")


def tiered(windows: Sequence[int | None], shares: Sequence[int], sequences: int, folder: Path) -> TieredCache:
    """GPU, CPU and disk as three pools of CPU memory and files."""
    spec = CacheSpec([LayerSpec({"row": (1,), "other": (3,)}, window) for window in windows], torch.float64)
    pages = tier_pages(spec, shares, sequences, 400, STEP)
    return TieredCache(spec, pages, shares, Tiers(CPU, False, OffloadFolder(folder, 0)))


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
