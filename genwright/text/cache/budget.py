"""How many cache pages the memory at hand allows."""

from bisect import bisect_right
from collections.abc import Sequence

from genwright.errors import UserError
from genwright.kernels import PAGE
from genwright.text.cache.layout import CacheSpec
from genwright.text.config import ModelConfig

LONGEST = 1 << 17  # tokens of context, unless more is asked for: tables of positions grow with it


def cache_pages(
    specs: Sequence[CacheSpec],
    step_tokens: int,
    cfg: ModelConfig,
    max_context: int | None,
    weights: int,
    budget: int,
    max_batch: int,
) -> tuple[list[int], int]:
    """Pages of the model's cache and of its draft model's, and the longest sequence that they hold.

    They take what the budget leaves beside the weights, or as much as `max_batch` sequences can use.
    """
    if max_context is not None and not 1 <= max_context <= cfg.longest_context:
        raise UserError(f"max_context must be between 1 and the model's {cfg.longest_context}, not {max_context}.")
    wanted = max_context or min(cfg.max_context, LONGEST)
    room = budget - weights - sum(spec.page_bytes * spec.null_pages for spec in specs)

    def needed(length: int) -> int:
        """Bytes of one sequence's pages."""
        return sum(spec.page_bytes * spec.pages_of(length, step_tokens) for spec in specs)

    longest = PAGE * bisect_right(range(PAGE, wanted + PAGE, PAGE), room, key=needed)
    if longest < 1:
        raise UserError(
            f"The weights take {weights / 1e9:.2f} GB and a page of cache {needed(PAGE) / 1e9:.3f} GB, but only "
            f"{budget / 1e9:.2f} GB may be used: a smaller model, or a narrower dtype, would fit."
        )
    if max_context is not None and longest < max_context:
        raise UserError(
            f"{max_context} tokens of context need {needed(wanted) / 1e9:.2f} GB of cache "
            f"beside {weights / 1e9:.2f} GB of weights, but only {budget / 1e9:.2f} GB may be used: "
            f"max_context={longest} would fit."
        )
    longest = min(wanted, longest)
    each = [spec.pages_of(longest, step_tokens) for spec in specs]
    # As many sequences of the longest kind as there is room for, in whole pages.
    pages = [min(room * count // needed(longest), max_batch * count) for count in each]
    return [count + spec.null_pages for count, spec in zip(pages, specs, strict=True)], longest
