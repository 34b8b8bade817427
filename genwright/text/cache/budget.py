"""How many cache pages fit in memory."""

from bisect import bisect_right
from collections.abc import Sequence

from genwright.errors import UserError
from genwright.kernels import PAGE
from genwright.text.cache.layout import CacheSpec
from genwright.text.config import ModelConfig

DEFAULT_MAX_CONTEXT = 1 << 17  # tokens, because RoPE and page tables grow with the context; max_context may be larger


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
