"""How many cache pages fit in memory."""

from bisect import bisect_right
from collections.abc import Sequence

from genwright.errors import UserError
from genwright.kernels import PAGE
from genwright.text.cache.layout import CacheSpec
from genwright.text.cache.tiered import tier_pages
from genwright.text.config import ModelConfig

DEFAULT_MAX_CONTEXT = 1 << 17  # tokens, because RoPE and page tables grow with the context; max_context may be larger
TIERS = ("the device", "CPU memory", "the disk")


def cache_pages(
    specs: Sequence[CacheSpec],
    step_tokens: int,
    cfg: ModelConfig,
    max_context: int | None,
    weights: int,
    budget: int,
    max_batch: int,
) -> tuple[list[int], int]:
    """The number of pages of each cache (the model's and its draft model's), and the longest sequence that they hold.

    The caches get the bytes of `budget` that `weights` leave, or what `max_batch` of the longest sequences need.
    """
    if max_context is not None and not 1 <= max_context <= cfg.longest_context:
        raise UserError(f"max_context must be between 1 and the model's {cfg.longest_context}, not {max_context}.")
    wanted = max_context or min(cfg.max_context, DEFAULT_MAX_CONTEXT)
    room = budget - weights - sum(spec.page_bytes * spec.null_pages for spec in specs)

    def needed(length: int) -> int:
        """Bytes of one sequence's pages."""
        return sum(spec.page_bytes * spec.pages_of(length, step_tokens) for spec in specs)

    longest = PAGE * bisect_right(range(PAGE, wanted + PAGE, PAGE), room, key=needed)
    if longest < 1:
        raise UserError(
            f"The weights take {weights / 1e9:.2f} GB and a page of cache {needed(PAGE) / 1e9:.3f} GB, but only "
            f"{budget / 1e9:.2f} GB may be used; a smaller model or a narrower dtype would fit."
        )
    if max_context is not None and longest < max_context:
        raise UserError(
            f"{max_context} tokens of context need {needed(wanted) / 1e9:.2f} GB of cache and the weights "
            f"{weights / 1e9:.2f} GB, but only {budget / 1e9:.2f} GB may be used; max_context={longest} would fit."
        )
    longest = min(wanted, longest)
    each = [spec.pages_of(longest, step_tokens) for spec in specs]
    # Pages for as many of the longest sequences as fit.
    pages = [min(room * count // needed(longest), max_batch * count) for count in each]
    return [count + spec.null_pages for count, spec in zip(pages, specs, strict=True)], longest


def tiered_cache_pages(
    specs: Sequence[CacheSpec],
    shares: Sequence[int],
    step_tokens: int,
    cfg: ModelConfig,
    max_context: int | None,
    weights: int,
    budget: int,
    rooms: Sequence[int],
    max_batch: int,
) -> tuple[list[list[int]], int]:
    """As `cache_pages`, but the model's cache (the first) has shares of the sequences, in percent, in several tiers.

    `weights` and `budget` are those of the device, where a draft model's cache also is; `rooms` are the bytes that the
    other tiers have for the cache. Returns the pages of each tier for each cache.
    """
    model, *drafts = specs
    on_device = specs if shares[0] else drafts
    counts, longest = cache_pages(on_device, step_tokens, cfg, max_context, weights, budget, max_batch)
    held = [counts[0] if shares[0] else 0, *(room // model.page_bytes for room in rooms)]
    least = ""
    for name, share, pages in zip(TIERS, shares, held, strict=True):
        lengths = range(PAGE, longest + PAGE, PAGE)
        fitting = PAGE * bisect_right(
            lengths, pages - model.null_pages, key=lambda length: model.pages_of(length, step_tokens)
        )
        if share and fitting < longest:
            longest, least = fitting, name
    if longest < min(1 if max_context is None else max_context, cfg.longest_context):
        raise UserError(
            f"The cache of one sequence of {max_context or PAGE} tokens must fit in each tier that has a share, but "
            f"{least} has room for {longest} tokens; choose other percentages or a smaller max_context."
        )
    limits = tier_pages(model, shares, max_batch, longest, step_tokens)
    tiers = [min(limit, pages) for limit, pages in zip(limits, held, strict=True)]
    return [tiers, *([count] for count in counts[len(counts) - len(drafts) :])], longest
