"""Sample tokens from logits in one launch, one program per row: the kernel form of `genwright.kernels.sampling`.

Both forms compute the same integers and the same float32 bits, so they give the same tokens.

For a small top_k or top_p only a few tokens matter, so the first pass over a row keeps the four largest logits of each
of its BLOCK lanes (lane i reads tokens i, i + BLOCK, ...). A token above `fourth`, the largest fourth logit of all
lanes, is among the first three of its lane. What concerns only such tokens is computed without reading the row again.

The winner is found by rejection: the best score among all tokens wins if its token is one that top_k and top_p keep. If
not, they keep no token with the same or a smaller logit either, and the best score among the larger ones is next.
"""

import torch
import triton.language as tl
from torch import Tensor

from genwright.kernels import sampling
from genwright.kernels.triton.jit import jit

BLOCK = 4096
WARPS = 16

_KEY = tl.constexpr(sampling.KEY)
_POSITION = tl.constexpr(sampling.POSITION)
_INVERSE_TEMPERATURE = tl.constexpr(sampling.INVERSE_TEMPERATURE)
_TOP_K = tl.constexpr(sampling.TOP_K)
_TOP_P = tl.constexpr(sampling.TOP_P)
_LOG_MIN_P = tl.constexpr(sampling.LOG_MIN_P)
_LOG = tl.constexpr(sampling.LOG)
_EXP2 = tl.constexpr(sampling.EXP2)
_LN2 = tl.constexpr(sampling.LN2)
_LOG2E = tl.constexpr(sampling.LOG2E)
_SQRT_HALF = tl.constexpr(sampling.SQRT_HALF)
_NAN, _FINE = tl.constexpr(1), tl.constexpr(2)


def sample(logits: Tensor, settings: Tensor, allowed: sampling.Allowed | None = None) -> Tensor:
    """As `sampling.draw`, without waiting for the device; logits may have 16 bits."""
    rows, vocab = logits.shape
    assert logits.stride(1) == 1
    assert settings.dtype == torch.int32 and settings.stride(1) == 1
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    bits, mask_of = (None, None) if allowed is None else (allowed.bits, allowed.mask_of)
    assert bits is None or (bits.is_contiguous() and bits.shape[1] * 32 >= vocab)
    _sample[(rows,)](
        logits, logits.stride(0), bits, 0 if bits is None else bits.shape[1], mask_of,
        settings, settings.stride(0), tokens, vocab,
        BLOCK=BLOCK, num_warps=WARPS, enable_fp_fusion=False,
    )  # fmt: skip
    return tokens


@jit
def _sample(logits, stride, bits, bits_stride, mask_of, settings, words, tokens, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    masked = False
    if bits is not None:
        mask = tl.load(mask_of + row)
        masked = mask >= 0
        bits += tl.maximum(mask, 0).to(tl.int64) * bits_stride
    settings += row * words
    lane = tl.arange(0, BLOCK)
    v1 = tl.full([BLOCK], float("-inf"), tl.float32)  # v1 to v4: a lane's largest logits; t1 to t3: their tiles
    v2, v3, v4 = v1, v1, v1
    t1 = tl.zeros([BLOCK], tl.int32)
    t2, t3, flags = t1, t1, t1  # flags: _NAN, and _FINE where a logit is not a bf16 number
    for start in tl.range(0, vocab, BLOCK, loop_unroll_factor=4):
        x = _load(logits, bits, masked, start + lane, vocab)
        flags |= tl.where(x != x, _NAN, tl.where((x.to(tl.int32, bitcast=True) & 0xFFFF) != 0, _FINE, 0))
        above1, above2, above3 = x > v1, x > v2, x > v3
        v4 = tl.where(above3, v3, tl.maximum(x, v4))
        t3 = tl.where(above2, t2, tl.where(above3, start, t3))
        v3 = tl.where(above2, v2, tl.where(above3, x, v3))
        t2 = tl.where(above1, t1, tl.where(above2, start, t2))
        v2 = tl.where(above1, v1, tl.where(above2, x, v2))
        t1 = tl.where(above1, start, t1)
        v1 = tl.where(above1, x, v1)
    top = tl.max(v1, 0)
    token = tl.min(tl.where(v1 == top, t1 + lane, vocab), 0)
    found = tl.reduce(flags, 0, _either)
    nan, shift = found & _NAN, tl.where((found & _FINE) != 0, 0, 16)  # shift: bits that are 0 in all logits

    inverse = tl.load(settings + _INVERSE_TEMPERATURE).to(tl.float32, bitcast=True)
    if (inverse > 0) & (top > float("-inf")) & (top < float("inf")) & (nan == 0):
        k = tl.load(settings + _TOP_K)
        top_p = tl.load(settings + _TOP_P).to(tl.float32, bitcast=True)
        log_min_p = tl.load(settings + _LOG_MIN_P).to(tl.float32, bitcast=True)
        fourth = tl.max(v4, 0)
        above = _ordered(fourth) + 1
        floor = _ordered(tl.full([], float("-inf"), tl.float32))  # the smallest logit that is kept, at least
        if k < vocab:
            if k <= 3 * BLOCK:
                floor = _kth_largest(v1, v2, v3, top, k, shift, BLOCK)
            if (floor < above) & (top_p < 1):
                floor = _kth_largest_of_row(logits, bits, masked, vocab, floor, top, k, BLOCK)
                k = vocab
            k = tl.where(floor < above, k, vocab)  # vocab: `floor` is enough
        limit = tl.full([], float("inf"), tl.float64)  # of the mass of tokens with larger logits
        in_lanes = (floor >= above) | ((fourth - top) * inverse < log_min_p)
        if top_p < 1:
            if floor >= above:
                total = _mass_reaching(v1, v2, v3, floor, top, inverse)
            else:
                _, total = _reaching(logits, bits, masked, vocab, floor, top, inverse, BLOCK)
            limit = tl.maximum(top_p.to(tl.float64) * total.to(tl.float64), 1.0)
            in_lanes |= _mass_reaching(v1, v2, v3, above, top, inverse).to(tl.float64) >= limit
        key = _mix(_mix(_bits(tl.load(settings + _KEY)) ^ _bits(tl.load(settings + _POSITION))))
        if in_lanes:
            floor = tl.maximum(floor, above)
            s1 = _score(v1, t1 + lane, floor, top, inverse, log_min_p, key)
            s2 = _score(v2, t2 + lane, floor, top, inverse, log_min_p, key)
            s3 = _score(v3, t3 + lane, floor, top, inverse, log_min_p, key)
            token = _search_lanes(
                logits, v1, v2, v3, t1 + lane, t2 + lane, t3 + lane, s1, s2, s3, vocab, k, limit, top, inverse
            )
        else:
            token = _search_row(
                logits, bits, masked, vocab, k, limit, floor, top, token, inverse, log_min_p, key, BLOCK
            )
    tl.store(tokens + row, tl.where(nan > 0, -1, token).to(tl.int64))


@jit
def _load(logits, bits, masked, ids, vocab):
    # Logits; -inf where the mask has no bit, but a NaN stays one.
    x = tl.load(logits + ids, ids < vocab, float("-inf")).to(tl.float32)
    if bits is not None:
        word = tl.load(bits + ids // 32, (ids < vocab) & masked, -1)
        x = tl.where(((word >> (ids % 32)) & 1 == 1) | (x != x), x, float("-inf"))
    return x


@jit
def _kth_largest(v1, v2, v3, top, k, shift, BLOCK: tl.constexpr):
    # Of the three values of each lane: the interval is divided until exactly k reach the bound, or is empty. The bound
    # is at most the k-th largest of the row, and if it is above `fourth`, it separates the k largest from the others.
    # Logits of a bf16 model are often equal, so the interval would become empty at last; with `shift` it is short.
    o1, o2, o3 = _ordered(v1) >> shift, _ordered(v2) >> shift, _ordered(v3) >> shift
    low = tl.min(tl.where(k <= BLOCK, o1, o3), 0)  # at least k are >= low, fewer are >= high
    high = (_ordered(top) >> shift) + 1
    while low + 1 < high:
        b2 = _mean(low, high)
        b1, b3 = _mean(low, b2), _mean(b2, high)
        # Three bounds at a time, because a sum over the lanes takes as long as many comparisons.
        counts = _reached(o1, b1, b2, b3) + _reached(o2, b1, b2, b3) + _reached(o3, b1, b2, b3)
        total = tl.sum(counts, 0)
        n1, n2, n3 = total & 0xFFFFF, (total >> 20) & 0xFFFFF, total >> 40
        exact = (n1 == k) | (n2 == k) | (n3 == k)
        high = tl.where(n1 < k, b1, tl.where(n2 < k, b2, tl.where(n3 < k, b3, high)))
        low = tl.where(n3 >= k, b3, tl.where(n2 >= k, b2, tl.where(n1 >= k, b1, low)))
        high = tl.where(exact, low, high)
    return low << shift


@jit
def _mean(low, high):
    # Without overflow.
    return (low & high) + ((low ^ high) >> 1)


@jit
def _reached(x, b1, b2, b3):
    # Which bounds x reaches, as counts of 20 bits each.
    return (x >= b1).to(tl.int64) + ((x >= b2).to(tl.int64) << 20) + ((x >= b3).to(tl.int64) << 40)


@jit
def _kth_largest_of_row(logits, bits, masked, vocab, low, top, k, BLOCK: tl.constexpr):
    # As `_kth_largest`, but reads the row in each step. At least k logits are >= low.
    high = _ordered(top) + 1
    while low + 1 < high:
        middle = _mean(low, high)
        count, _ = _reaching(logits, bits, masked, vocab, middle, top, 1.0, BLOCK)
        low = tl.where(count >= k, middle, low)
        high = tl.where(count > k, high, middle)
    return low


@jit
def _reaching(logits, bits, masked, vocab, bound, top, inverse, BLOCK: tl.constexpr):
    # How many logits reach a bound (in the order of `_ordered`), and their mass.
    lane = tl.arange(0, BLOCK)
    count = tl.zeros([BLOCK], tl.int32)
    masses = tl.zeros([BLOCK], tl.int64)
    for start in range(0, vocab, BLOCK):
        x = _load(logits, bits, masked, start + lane, vocab)
        reaches = (_ordered(x) >= bound) & (start + lane < vocab)
        count += reaches.to(tl.int32)
        masses += tl.where(reaches, _mass((x - top) * inverse), 0)
    return tl.sum(count, 0), tl.sum(masses, 0)


@jit
def _mass_reaching(v1, v2, v3, bound, top, inverse):
    # The mass of the lanes' logits that reach a bound above `fourth`, which is the mass of the row's.
    m1 = tl.where(_ordered(v1) >= bound, _mass((v1 - top) * inverse), 0)
    m2 = tl.where(_ordered(v2) >= bound, _mass((v2 - top) * inverse), 0)
    m3 = tl.where(_ordered(v3) >= bound, _mass((v3 - top) * inverse), 0)
    return tl.sum(m1 + m2 + m3, 0)


@jit
def _search_lanes(logits, v1, v2, v3, ids1, ids2, ids3, s1, s2, s3, vocab, k, limit, top, inverse):
    # The winner, if it is among the first three of its lane.
    token = tl.full([], 0, tl.int32)
    searching = True
    while searching:
        best = tl.max(tl.maximum(tl.maximum(s1, s2), s3), 0)
        first = tl.minimum(tl.where(s1 == best, ids1, vocab), tl.where(s2 == best, ids2, vocab))
        token = tl.min(tl.minimum(first, tl.where(s3 == best, ids3, vocab)), 0)
        searching = False
        if (k < vocab) | (limit < float("inf")):
            larger = _ordered(tl.load(logits + token).to(tl.float32)) + 1
            o1, o2, o3 = _ordered(v1) >= larger, _ordered(v2) >= larger, _ordered(v3) >= larger
            s1, s2 = tl.where(o1, s1, float("-inf")), tl.where(o2, s2, float("-inf"))
            s3 = tl.where(o3, s3, float("-inf"))
            count = tl.sum(o1.to(tl.int32) + o2.to(tl.int32) + o3.to(tl.int32), 0)
            mass = _mass_reaching(v1, v2, v3, larger, top, inverse)
            searching = (count >= k) | (mass.to(tl.float64) >= limit)
    return token


@jit
def _search_row(logits, bits, masked, vocab, k, limit, floor, top, token, inverse, log_min_p, key, BLOCK: tl.constexpr):
    # The winner, by reading the whole row. The tokens with the largest logit are always kept, so there is one.
    lane = tl.arange(0, BLOCK)
    searching = True
    while searching:
        best = tl.full([BLOCK], float("-inf"), tl.float32)
        ids = tl.zeros([BLOCK], tl.int32)
        for start in range(0, vocab, BLOCK):
            x = _load(logits, bits, masked, start + lane, vocab)
            score = _score(x, start + lane, floor, top, inverse, log_min_p, key)
            ids = tl.where(score > best, start + lane, ids)
            best = tl.maximum(best, score)
        token = tl.min(tl.where(best == tl.max(best, 0), ids, vocab), 0)
        searching = False
        if (k < vocab) | (limit < float("inf")):
            floor = _ordered(tl.load(logits + token).to(tl.float32)) + 1
            count, mass = _reaching(logits, bits, masked, vocab, floor, top, inverse, BLOCK)
            searching = (count >= k) | (mass.to(tl.float64) >= limit)
    return token


@jit
def _score(x, ids, floor, top, inverse, log_min_p, key):
    y = (x - top) * inverse
    u = ((_mix(_mix(_bits(ids)) ^ key) >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608)
    return tl.where((_ordered(x) >= floor) & (y >= log_min_p), y - _log(-_log(u)), float("-inf"))


@jit
def _mass(y):
    # sampling.mass
    t = tl.minimum(y * -_LOG2E, 63.0)
    whole = t.to(tl.int32)
    f = t - whole.to(tl.float32)
    p = f * _EXP2[0] + _EXP2[1]
    for i in tl.static_range(2, 5):
        p = p * f + _EXP2[i]
    p = (p * f + 1.0) * 16777216.0
    return (p.to(tl.int32).to(tl.int64) << 8) >> whole.to(tl.int64)


@jit
def _log(x):
    # sampling._log
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - _SQRT_HALF) >> 23
    f = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    p = f * _LOG[0] + _LOG[1]
    for i in tl.static_range(2, 7):
        p = p * f + _LOG[i]
    return exponent.to(tl.float32) * _LN2 + (p * (f * f) + f)


@jit
def _mix(x):
    # genwright.rng.mix, on uint32
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    return x ^ (x >> 16)


@jit
def _either(a, b):
    return a | b


@jit
def _bits(x):
    return x.to(tl.uint32)


@jit
def _ordered(x):
    # An int32 that compares as the float32 does: -0.0 and 0.0 are equal.
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
