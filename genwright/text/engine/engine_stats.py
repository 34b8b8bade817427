"""EngineStats: how busy an engine is, for the server's metrics."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the server reads EngineStats without importing torch
    from genwright.text.engine.engine import Engine


@dataclass(frozen=True)
class EngineStats:
    """Sequences and the share of cache pages in use now; the other counts are since the engine started."""

    running: int = 0
    waiting: int = 0
    cache_use: float = 0.0  # pages of running sequences; those only kept for later prefixes count as free
    prefix_queries: int = 0  # tokens of admitted requests
    prefix_hits: int = 0  # of these, found in the prefix cache
    preemptions: int = 0


def engine_stats(engine: "Engine") -> EngineStats:
    """Measure an engine; only its own thread may call this."""
    scheduler = engine.scheduler
    sequences = [request.pages for request in scheduler.running if request.pages is not None]
    shared = {id(node): len(node.pages) for pages in sequences for node in pages.shared}
    used = sum(shared.values()) + sum(len(group) for pages in sequences for group in pages.own)
    cache = engine.pool.cache
    total = cache.pages - cache.spec.null_pages
    counts = scheduler.prefix_queries, scheduler.prefix_hits, scheduler.preemptions
    return EngineStats(len(scheduler.running), len(scheduler.waiting), used / max(total, 1), *counts)
