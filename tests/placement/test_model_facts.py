"""Sizes of caches with windows."""

from dataclasses import replace

from placement.profiles import opt


def test_windows_shorten_what_is_read_and_held() -> None:
    local = replace(opt(1024, 4), windows=(128, 128, 128, None))
    assert local.keys(1000) == 3 * 128 + 1000 and local.keys(100) == 400
    assert local.cache_held(1000) == local.cache_row * 64 * (3 * 3 + 16)
    assert local.pairs(3) == 4 * 6 and local.pairs(256) == 3 * (128 * 129 / 2 + 128 * 128) + 256 * 257 / 2
