"""Rows of sampling settings, and awkward logits to sample from."""

import itertools
import math

import numpy as np
import torch

from genwright.rng import key

# Every setting's ordinary and extreme values; `mixed` takes combinations of them.
TEMPERATURES = (0.0, 1e-37, 1e-4, 0.8, 1.0, 1.7, 100.0)
TOP_KS = (0, 1, 2, 20, 500, 1 << 24)
TOP_PS = (1.0, 0.0, 1e-6, 0.3, 0.9, float(np.nextafter(np.float32(1), np.float32(0))))
MIN_PS = (0.0, 1.0, 0.05, 1e-10)


def row(vocab: int, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, sample=0, position=1) -> list[int]:
    numbers = np.array((1 / temperature if temperature else 0, top_p, math.log(min_p) if min_p else -math.inf))
    inverse, top_p_bits, log_min_p = numbers.astype(np.float32).view(np.int32).tolist()
    prefix = key(seed, sample)
    return [prefix - (prefix >> 31 << 32), position, inverse, min(top_k or vocab, vocab), top_p_bits, log_min_p]


def rows(vocab: int, options: list[dict], device: str = "cpu") -> torch.Tensor:
    """Settings of one row for each dict of options, each with its own seed."""
    made = [row(vocab, **{"seed": i << 30, "sample": i % 3, "position": i, **some}) for i, some in enumerate(options)]
    return torch.tensor(made, dtype=torch.int32, device=device)


def mixed(count: int, seed: int) -> list[dict]:
    names = ("temperature", "top_k", "top_p", "min_p")
    grid = list(itertools.product(TEMPERATURES, TOP_KS, TOP_PS, MIN_PS))
    return [dict(zip(names, grid[i], strict=True)) for i in np.random.default_rng(seed).integers(0, len(grid), count)]


def awkward_logits(kind: str, count: int, vocab: int, seed: int) -> torch.Tensor:
    """Logits [count, vocab] of one kind: see KINDS."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 3, (count, vocab)).astype(np.float32)
    if kind == "flat":
        x *= np.float32(1e-3)
    elif kind == "ties":
        x = np.round(x)
    elif kind == "zeros":
        x = np.where(x < 0, np.float32(-0.0), x * rng.integers(0, 2, x.shape).astype(np.float32))
    elif kind == "forbidden":
        x[rng.random(x.shape) < 0.9] = -np.inf
    elif kind == "bf16":
        x = torch.from_numpy(x).bfloat16().float().numpy()
    elif kind == "huge":
        x *= np.float32(1e30)
    elif kind == "denormal":
        x *= np.float32(1e-39)
    elif kind == "broken":
        x[0, 1], x[1, vocab - 1], x[2, 3] = np.nan, np.nan, np.inf
        x[3] = -np.inf
    return torch.from_numpy(x)


KINDS = ("plain", "flat", "ties", "zeros", "forbidden", "bf16", "huge", "denormal", "broken")
