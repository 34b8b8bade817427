"""Sample tokens from logits in one launch, one program per row, with the same noise as `text/engine/sampler`.

Sampling is argmax p / e = argmax (logit / T - log e), with exponential noise e per token. For a small top_k only a few
tokens matter, so the first pass over a row keeps the three largest logits of each of its BLOCK lanes (lane i reads
tokens i, i + BLOCK, ...). The k-th largest of these is at most the true k-th largest. It is the true one if no lane's
third value reaches it, since all candidates are then the first or second of a lane. Otherwise the row is read again:
the best token above the bound is accepted if it is one of the k largest; if not, the bound is raised to its logit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
WARPS = 16


def sample(
    logits: Tensor,
    prefix: Tensor,
    positions: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    purpose: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """Tokens, int64 [rows], from float32 logits [rows, vocab]; -1 for a row that has a NaN. No host sync.

    prefix int32 [rows] is the request's key(seed, sample); positions [rows] are the new tokens' positions. Temperature
    0 is argmax, the lowest id among ties. top_k (int32, 0 for all) keeps ties with the k-th largest logit. top_p keeps
    a token if the more likely ones of the top k have less than top_p of their probability. min_p keeps tokens with at
    least min_p times the highest probability.
    """
    rows, vocab = logits.shape
    assert logits.dtype == torch.float32 and logits.stride(1) == 1
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device) if out is None else out
    _sample[(rows,)](
        logits, logits.stride(0), prefix, positions, temperature, top_k, top_p, min_p, tokens, vocab, purpose,
        BLOCK=BLOCK, num_warps=WARPS,
    )  # fmt: skip
    return tokens


@triton.jit(do_not_specialize=["purpose"])
def _sample(
    logits, stride, prefix, positions, temperature, top_k, top_p, min_p, tokens, vocab, purpose, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    lane = tl.arange(0, BLOCK)
    v1 = tl.full([BLOCK], float("-inf"), tl.float32)  # v1 to v3: a lane's largest logits; t1, t2: their tiles
    v2, v3 = v1, v1
    t1 = tl.zeros([BLOCK], tl.int32)
    t2, has_nan = t1, t1
    for start in tl.range(0, vocab, BLOCK, loop_unroll_factor=2):
        x = tl.load(logits + start + lane, start + lane < vocab, float("-inf"))
        has_nan |= (x != x).to(tl.int32)
        above1, above2 = x > v1, x > v2
        v3 = tl.where(above2, v2, tl.maximum(x, v3))
        t2 = tl.where(above1, t1, tl.where(above2, start, t2))
        v2 = tl.where(above1, v1, tl.where(above2, x, v2))
        t1 = tl.where(above1, start, t1)
        v1 = tl.where(above1, x, v1)
    top = tl.max(v1, 0)
    token = tl.min(tl.where(v1 == top, t1 + lane, vocab), 0)

    T = tl.load(temperature + row)
    if T > 0:
        k = tl.load(top_k + row)
        k = tl.where((k <= 0) | (k > vocab), vocab, k)
        share = tl.load(min_p + row)
        floor = tl.where(share > 0, top + T * tl.log(tl.maximum(share, 1e-37)), float("-inf"))
        mass = tl.load(top_p + row)
        inverse = tl.minimum(1 / T, 3e38)
        if mass < 1:
            floor = tl.maximum(floor, _nucleus(logits, vocab, k, mass, top, inverse, BLOCK))
            k = vocab
        elif (k < vocab) & (k <= 3 * BLOCK):
            floor = tl.maximum(floor, _kth_largest(v1, v2, v3, top, k, BLOCK))
        key = _mix(_mix(_bits(tl.load(prefix + row)) ^ _bits(tl.load(positions + row))) ^ _bits(purpose))
        if tl.max(v3, 0) < floor:
            s1 = _score(v1, t1 + lane, floor, top, inverse, key)
            s2 = _score(v2, t2 + lane, floor, top, inverse, key)
            best = tl.max(tl.maximum(s1, s2), 0)
            first = tl.minimum(tl.where(s1 == best, t1 + lane, vocab), tl.where(s2 == best, t2 + lane, vocab))
            token = tl.min(first, 0)
        else:
            token = _search(logits, vocab, k, floor, top, token, inverse, key, BLOCK)
    tl.store(tokens + row, tl.where(tl.max(has_nan, 0) > 0, -1, token).to(tl.int64))


@triton.jit
def _kth_largest(v1, v2, v3, top, k, BLOCK: tl.constexpr):
    # Bisect over the integers of `_ordered`, until exactly k values reach the bound or the interval is empty.
    o1, o2, o3 = _ordered(v1), _ordered(v2), _ordered(v3)
    low = tl.min(tl.where(k <= BLOCK, o1, o3), 0)  # at least k are >= low, fewer are >= high
    high = _ordered(top) + 1
    while low + 1 < high:
        middle = (low & high) + ((low ^ high) >> 1)  # their mean, without overflow
        count = tl.sum((o1 >= middle).to(tl.int32) + (o2 >= middle).to(tl.int32) + (o3 >= middle).to(tl.int32), 0)
        low = tl.where(count >= k, middle, low)
        high = tl.where(count > k, high, middle)
    return (low ^ ((low >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _nucleus(logits, vocab, k, mass, top, inverse, BLOCK: tl.constexpr):
    # The smallest logit that top_k and top_p keep. Two bisections; each reads the row up to 32 times.
    high = _ordered(top) + 1
    low = _ordered(float("-inf") + 0 * top)
    end = high
    while (k < vocab) & (low + 1 < end):  # at least k are >= low, fewer are >= end
        middle = (low & end) + ((low ^ end) >> 1)
        count, _ = _reaching(logits, vocab, middle, top, inverse, BLOCK)
        low = tl.where(count >= k, middle, low)
        end = tl.where(count >= k, end, middle)
    _, total = _reaching(logits, vocab, low, top, inverse, BLOCK)
    while low + 1 < high:  # the logits >= low have the mass, those >= high do not
        middle = (low & high) + ((low ^ high) >> 1)
        _, part = _reaching(logits, vocab, middle, top, inverse, BLOCK)
        low = tl.where(part >= mass * total, middle, low)
        high = tl.where(part >= mass * total, high, middle)
    return (low ^ ((low >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _reaching(logits, vocab, bound, top, inverse, BLOCK: tl.constexpr):
    # How many logits reach a bound (in the order of `_ordered`), and their probability relative to the largest one's.
    lane = tl.arange(0, BLOCK)
    count = tl.zeros([BLOCK], tl.int32)
    mass = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab, BLOCK):
        x = tl.load(logits + start + lane, start + lane < vocab, float("-inf"))
        above = (_ordered(x) >= bound) & (start + lane < vocab)
        count += above.to(tl.int32)
        mass += tl.where(above, tl.exp((x - top) * inverse), 0.0)
    return tl.sum(count, 0), tl.sum(mass, 0)


@triton.jit
def _search(logits, vocab, k, floor, top, token, inverse, key, BLOCK: tl.constexpr):
    # Sample by reading the whole row. `token` has the largest logit and is the result if no other token qualifies.
    lane = tl.arange(0, BLOCK)
    pivot = float("-inf")
    searching = True
    while searching:
        best = tl.full([BLOCK], float("-inf"), tl.float32)
        ids = tl.zeros([BLOCK], tl.int32)
        for start in range(0, vocab, BLOCK):
            x = tl.load(logits + start + lane, start + lane < vocab, float("-inf"))
            score = _score(tl.where(x > pivot, x, float("-inf")), start + lane, floor, top, inverse, key)
            ids = tl.where(score > best, start + lane, ids)
            best = tl.maximum(best, score)
        winner = tl.max(best, 0)
        if winner > float("-inf"):
            token = tl.min(tl.where(best == winner, ids, vocab), 0)
        searching = False
        if k < vocab:
            pivot = tl.load(logits + token)
            count = tl.zeros([BLOCK], tl.int32)
            for start in range(0, vocab, BLOCK):
                x = tl.load(logits + start + lane, start + lane < vocab, float("-inf"))
                count += (x > pivot).to(tl.int32)
            searching = tl.sum(count, 0) >= k  # then neither this token nor any smaller one is in the top k
    return token


@triton.jit
def _score(x, ids, floor, top, inverse, key):
    # logit / T - log(-log u), where -log u is sampler.draw's exponential noise; subtracting top keeps precision.
    u = ((_mix(_mix(_bits(ids)) ^ key) >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608)
    return tl.where(x >= floor, (x - top) * inverse - tl.log(-tl.log(u)), float("-inf"))


@triton.jit
def _mix(x):
    # genwright.rng.mix, on uint32
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _bits(x):
    return x.to(tl.uint32)


@triton.jit
def _ordered(x):
    # An int32 that compares as the float32 does.
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
