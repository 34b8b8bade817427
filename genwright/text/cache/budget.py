"""How many cache pages the memory at hand allows."""

from pathlib import Path

import torch

from genwright.errors import UserError
from genwright.text.cache.layout import PAGE
from genwright.text.config import ModelConfig

LONGEST = 1 << 17  # tokens of context, unless more is asked for: tables of positions grow with it


def free_memory(device: torch.device) -> int:
    """Bytes that can be taken on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * 0.9)
    try:
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(int(line.split()[1]) * 1024 * 0.8)
    except OSError:
        pass
    return 8 << 30


def cache_pages(
    page_bytes: int, cfg: ModelConfig, max_context: int | None, weights: int, budget: int, max_batch: int
) -> tuple[int, int]:
    """Pages of the cache, and the longest sequence that they hold: within the budget, beside the weights."""
    if max_context is not None and not 1 <= max_context <= cfg.longest_context:
        raise UserError(f"max_context must be between 1 and the model's {cfg.longest_context}, not {max_context}.")
    wanted = max_context or min(cfg.max_context, LONGEST)
    fitting = (budget - weights) // page_bytes
    if fitting < 1:
        raise UserError(
            f"the weights take {weights / 1e9:.2f} GB and a page of cache {page_bytes / 1e9:.3f} GB, and only "
            f"{budget / 1e9:.2f} GB may be used: a smaller model, or a narrower dtype, would fit."
        )
    if max_context is not None and fitting * PAGE < max_context:
        raise UserError(
            f"{max_context} tokens of context need {-(-max_context // PAGE) * page_bytes / 1e9:.2f} GB of cache "
            f"beside {weights / 1e9:.2f} GB of weights, and {budget / 1e9:.2f} GB may be used: "
            f"max_context={fitting * PAGE} would fit."
        )
    pages = min(fitting, max_batch * -(-wanted // PAGE))
    return pages, min(wanted, pages * PAGE)
