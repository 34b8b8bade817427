"""Cache pages never take more bytes than the budget, and a sequence of the returned length always fits."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genwright.errors import UserError
from genwright.text.cache.budget import cache_pages
from genwright.text.cache.layout import CacheSpec, LayerSpec

CFG = SimpleNamespace(max_context=4096, longest_context=4096)
STEP = 512


def spec(windows: list[int | None], width: int = 8) -> CacheSpec:
    return CacheSpec([LayerSpec({"k": (width,), "v": (width,)}, window) for window in windows], torch.float16)


windows = st.lists(st.sampled_from([None, 100, 3000]), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(model=windows, draft=st.none() | windows, room=st.integers(0, 1 << 22), batch=st.sampled_from([1, 64]))
def test_pages_fit_the_budget_and_the_context_fits_the_pages(model, draft, room, batch) -> None:
    specs = [spec(model)] if draft is None else [spec(model), spec(draft, 2)]
    try:
        pages, longest = cache_pages(specs, STEP, CFG, None, 1000, 1000 + room, batch)
    except UserError:
        assert room < sum(each.page_bytes * (each.pages_of(1, STEP) + each.null_pages) for each in specs)
        return
    assert sum(each.page_bytes * count for each, count in zip(specs, pages, strict=True)) <= room
    assert 1 <= longest <= CFG.max_context
    for each, count in zip(specs, pages, strict=True):
        needed = each.pages_of(longest, STEP)
        assert needed <= count - each.null_pages <= batch * needed
    if longest < CFG.max_context:
        more = sum(each.page_bytes * (each.pages_of(longest + 1, STEP) + each.null_pages) for each in specs)
        assert more > room, "a longer context would not have fitted"


def test_windows_make_room_for_a_longer_context() -> None:
    budget = 40 * spec([None]).page_bytes
    lengths = [cache_pages([spec([w])], STEP, CFG, None, 0, budget, 1)[1] for w in (None, 1024)]
    assert lengths == [40 * 64, CFG.max_context]


def test_errors_say_what_would_fit() -> None:
    one = spec([None] * 4)
    with pytest.raises(UserError, match="max_context must be between 1 and the model's 4096, not 5000"):
        cache_pages([one], STEP, CFG, 5000, 0, 1 << 30, 1)
    with pytest.raises(UserError, match=r"a page of cache .* would fit"):
        cache_pages([one], STEP, CFG, None, 0, one.page_bytes - 1, 1)
    with pytest.raises(UserError, match="max_context=128 would fit"):
        cache_pages([one], STEP, CFG, 4000, 0, 2 * one.page_bytes, 1)
    assert cache_pages([one], STEP, CFG, 128, 0, 2 * one.page_bytes, 1) == ([2], 128)
