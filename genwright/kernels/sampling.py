"""The definition of sampling, on the host; `triton/sample` gives the same tokens on a GPU.

Every float32 operation is rounded separately, and sums of probabilities are sums of integers. So nothing depends on the
order of a sum, on fused multiply-adds or on a device's own exp and log. For a row of logits x, the largest being top:

- A row with a NaN gives -1. Then the x of tokens that `Allowed` forbids is -inf.
- Temperature 0, or a top that is infinite, gives the lowest id that has the largest logit.
- y = (x - top) * inverse_temperature.
- top_k keeps the tokens whose x is at least the k-th largest one.
- top_p keeps, of those, each token for which `mass`, summed over the tokens with a larger x, is less than top_p of the
  total. The tokens with the largest x are always kept, and top_p = 1 keeps all.
- min_p keeps the tokens with y >= log(min_p).
- Of the tokens that are kept, the one with the largest y + gumbel(u) wins, the lowest id among equals. This is a draw
  from the softmax of y (the Gumbel-max trick). u is a hash of seed, sample, position and token id.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Hashes = NDArray[np.uint32]
Ints = NDArray[np.int64]

# The words of a row of settings, int32: key(seed, sample), the position of the new token, the float32 bits of
# 1 / temperature (0 is greedy), top_k (at most the vocabulary), and the bits of top_p and log(min_p).
WORDS = 6
KEY, POSITION, INVERSE_TEMPERATURE, TOP_K, TOP_P, LOG_MIN_P = range(WORDS)

# log(1 + f) = f + f^2 R(f) for sqrt(1/2) <= 1 + f <= sqrt(2), and 2^-f = 1 + f Q(f) for 0 <= f <= 1. Coefficients of R
# and Q from the highest power down; the largest relative errors are 2e-7 and 1e-7.
LOG = (
    -0.1008237898349762, 0.16180501878261566, -0.17243224382400513, 0.1990688294172287, -0.2497122883796692,
    0.3333471417427063, -0.5000032186508179,
)  # fmt: skip
EXP2 = (-0.0009449037024751306, 0.009205798618495464, -0.0552973598241806, 0.2401801496744156, -0.6931437253952026)
LN2 = 0.6931471824645996
LOG2E = 1.4426950216293335
SQRT_HALF = 0x3F3504F3  # the bits of sqrt(1/2)

_LANES = 1024
_ROUGH_ERROR = 1e-4  # a bound on the difference that numpy's own logarithms make to a score; 4e-6 is measured


@dataclass(frozen=True)
class Allowed:
    """Which tokens may be drawn: bit i % 32 of word i // 32 for token i."""

    bits: torch.Tensor  # int32 [masks, vocab / 32 rounded up, or more]
    mask_of: torch.Tensor  # int32 [rows], the mask of each row of logits; -1 allows all tokens


def draw(logits: torch.Tensor, settings: torch.Tensor, allowed: Allowed | None = None) -> torch.Tensor:
    """Tokens int64 [rows] from float32 logits [rows, vocab] and int32 settings [rows, words]; waits for a GPU."""
    assert logits.dtype == torch.float32 and settings.dtype == torch.int32
    rows, words = logits.cpu().numpy(), settings.cpu().numpy()
    keys = _mix(_mix(words[:, KEY].view(np.uint32) ^ words[:, POSITION].view(np.uint32)))
    numbers = words.view(np.float32)
    masks = _masks(len(rows), allowed)
    with np.errstate(over="ignore"):  # a low temperature may give y = -inf
        tokens = [_draw_row(*row) for row in zip(rows, words, numbers, keys, masks, strict=True)]
    return torch.tensor(tokens, dtype=torch.int64, device=logits.device)


def _masks(rows: int, allowed: Allowed | None) -> list[NDArray[np.int32] | None]:
    """The words of each row's mask, if it has one."""
    if allowed is None:
        return [None] * rows
    bits = allowed.bits.cpu().numpy()
    return [None if mask < 0 else bits[mask] for mask in allowed.mask_of.tolist()]


def mass(y: Floats) -> Ints:
    """floor(exp(y) 2^32) for y <= 0."""
    t = np.minimum(y * -LOG2E, 63)
    whole = t.astype(np.int64)
    f = t - whole.astype(np.float32)
    p = np.full_like(f, EXP2[0])
    for coefficient in EXP2[1:]:
        p *= f
        p += coefficient
    p *= f
    p += 1
    p *= 2.0**24
    return (p.astype(np.int64) << 8) >> whole


def gumbel(u: Floats) -> Floats:
    """-log(-log(u)) for 0 < u < 1."""
    return -_log(-_log(u))


def uniform(hashes: Hashes) -> Floats:
    """As `rng.uniform`."""
    u = (hashes >> 9).astype(np.float32)
    u += 0.5
    u *= 2.0**-23
    return u


def _log(x: Floats) -> Floats:
    """log(x) of positive normal numbers."""
    bits = x.view(np.int32)
    exponent = (bits - SQRT_HALF) >> 23
    f = (bits - (exponent << 23)).view(np.float32) - 1
    p = np.full_like(f, LOG[0])
    for coefficient in LOG[1:]:
        p *= f
        p += coefficient
    p *= f * f
    p += f
    return exponent.astype(np.float32) * LN2 + p


def _draw_row(
    x: Floats, words: NDArray[np.int32], numbers: Floats, key: np.uint32, mask: NDArray[np.int32] | None
) -> int:
    best = int(x.argmax())  # a NaN counts as the largest
    if np.isnan(x[best]):
        return -1
    if mask is None:
        return _draw_kept(x, *_hashed(len(x)), best, words, numbers, key)
    filters = words[TOP_K] < len(x) or numbers[TOP_P] < 1 or numbers[LOG_MIN_P] > -math.inf
    if _is_allowed(best, mask) and not filters:
        # If the winner among all tokens is allowed, it wins among those that are allowed.
        token = _draw_kept(x, *_hashed(len(x)), best, words, numbers, key)
        if _is_allowed(token, mask):
            return token
    ids, hashes = _hashed(len(x))
    allowed = np.unpackbits(mask.view(np.uint8), count=len(x), bitorder="little").view(np.bool_)
    if np.count_nonzero(allowed) > len(x) // 2:  # then this is faster than to leave the others out
        x = np.where(allowed, x, np.float32(-np.inf))
    else:
        kept = np.flatnonzero(allowed)
        x, ids, hashes = x[kept], kept, hashes[kept]
    best = int(x.argmax()) if len(x) else 0
    if not len(x) or x[best] == -math.inf:
        return 0  # all logits are -inf
    return _draw_kept(x, ids, hashes, best, words, numbers, key)


def _is_allowed(token: int, mask: NDArray[np.int32]) -> bool:
    return bool(mask[token >> 5] >> (token & 31) & 1)


def _draw_kept(
    x: Floats, ids: Ints, hashes: Hashes, best: int, words: NDArray[np.int32], numbers: Floats, key: np.uint32
) -> int:
    """Draw from logits without a NaN, of which number `best` is the first of the largest."""
    top, inverse = x[best], numbers[INVERSE_TEMPERATURE]
    if inverse == 0 or np.isinf(top):
        return int(ids[best])
    if words[TOP_K] < len(x):
        kept = _top_k(x, int(words[TOP_K]))
        x, ids, hashes = x[kept], ids[kept], hashes[kept]
    if numbers[TOP_P] < 1:
        kept = _top_p(x, top, inverse, float(numbers[TOP_P]))
        x, ids, hashes = x[kept], ids[kept], hashes[kept]
    y = (x - top) * inverse
    if numbers[LOG_MIN_P] > -math.inf:
        kept = np.flatnonzero(y >= numbers[LOG_MIN_P])
        y, ids, hashes = y[kept], ids[kept], hashes[kept]
    u = uniform(_mix(hashes ^ key))
    if len(ids) > _LANES:  # `gumbel` is slow: drop what cannot win
        rough = y - _rough_log(u)
        kept = np.flatnonzero(rough >= rough.max() - 2 * _ROUGH_ERROR)
        y, ids, u = y[kept], ids[kept], u[kept]
    return int(ids[(y + gumbel(u)).argmax()])


def _rough_log(u: Floats) -> Floats:
    """log(-log(u)), with numpy's logarithms."""
    e = np.log(u)
    np.negative(e, out=e)
    return np.log(e, out=e)


def _top_k(x: Floats, k: int) -> Ints:
    """The indices of all elements that are at least the k-th largest."""
    likely = _likely(x, k)
    values = x[likely]
    kth = len(values) - k
    return likely[values >= np.partition(values, kth)[kth]]


def _top_p(x: Floats, top: Any, inverse: Any, top_p: float) -> Ints:
    """The indices of the elements that top_p keeps."""
    kept = _likely(x, _LANES // 2)
    ordered = np.sort(x[kept])[::-1]
    masses = mass((ordered - top) * inverse)
    total = masses.sum() if len(kept) == len(x) else mass((x - top) * inverse).sum()
    bound = max(top_p * float(total), 1.0)
    if masses.sum() < bound:
        kept = np.arange(len(x))
        ordered = np.sort(x)[::-1]
        masses = mass((ordered - top) * inverse)
    larger = masses.cumsum() - masses
    # Of equal elements only the first one's sum is that of larger elements; if it is kept, so are the others.
    floor = ordered[np.searchsorted(larger, bound) - 1]
    return kept[x[kept] >= floor]


def _likely(x: Floats, k: int) -> Ints:
    """The indices of all elements that reach some bound: at least k, and for a small k not many more."""
    if k > _LANES // 2 or len(x) < 2 * _LANES:
        return np.arange(len(x))
    lanes = x[: len(x) // _LANES * _LANES].reshape(-1, _LANES).max(axis=0)
    return np.flatnonzero(x >= np.partition(lanes, _LANES - k)[_LANES - k])


@lru_cache(maxsize=4)
def _hashed(vocab: int) -> tuple[Ints, Hashes]:
    """All token ids, and their hashes."""
    ids = np.arange(vocab)
    return ids, _mix(ids.astype(np.uint32))


def _mix(x: Hashes) -> Hashes:
    """As `rng.mix`: hash in place."""
    x ^= x >> 16
    x *= np.uint32(0x7FEB352D)
    x ^= x >> 15
    x *= np.uint32(0x846CA68B)
    x ^= x >> 16
    return x
