"""Logits to tokens in one launch, one program per row, with the noise of `text/engine/sampler`.

A token's noise is its exponential clock's: argmax p / clock = argmax (logit / T - log clock). Only the likeliest few
tokens are in the race when top_k is small, so the first reading of a row keeps the three largest logits of each of its
BLOCK lanes (lane i sees tokens i, i + BLOCK, ...). The k-th largest of these is at most the true one, and is the true
one if no lane's third reaches it: then all candidates are first or second of a lane. Otherwise the row is read again:
the winner among all tokens above the bound stands if it is one of the k largest; if not, the bound rises to its logit.
"""

# mypy: disable-error-code=no-untyped-def
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

    prefix int32 [rows] is the request's key(seed, sample), positions [rows] where the token will stand. Temperature 0
    is argmax, the lowest id among equals; top_k int32 keeps all if 0, and equals of the k-th largest logit stay; top_p
    keeps tokens whose likelier ones have less of the probability of those; a token also needs min_p times the
    likeliest one's.
    """
    rows, vocab = logits.shape
    assert logits.dtype == torch.float32 and logits.stride(1) == 1
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device) if out is None else out
    _sample[(rows,)](
        logits,
        logits.stride(0),
        prefix,
        positions,
        temperature,
        top_k,
        top_p,
        min_p,
        tokens,
        vocab,
        purpose,
        BLOCK=BLOCK,
        num_warps=WARPS,
    )
    return tokens


@triton.jit(do_not_specialize=["purpose"])
def _sample(
    logits, stride, prefix, positions, temperature, top_k, top_p, min_p, tokens, vocab, purpose, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    lane = tl.arange(0, BLOCK)
    v1 = tl.full([BLOCK], float("-inf"), tl.float32)  # a lane's largest logits, and the tiles that they come from
    v2, v3 = v1, v1
    t1 = tl.zeros([BLOCK], tl.int32)
    t2, broken = t1, t1
    for start in tl.range(0, vocab, BLOCK, loop_unroll_factor=2):
        x = tl.load(logits + start + lane, start + lane < vocab, float("-inf"))
        broken |= (x != x).to(tl.int32)
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
    tl.store(tokens + row, tl.where(tl.max(broken, 0) > 0, -1, token).to(tl.int64))


@triton.jit
def _kth_largest(v1, v2, v3, top, k, BLOCK: tl.constexpr):
    # By bisection over integers in the order of floats; any bound that exactly k reach will do.
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
    # The smallest logit that top_k and top_p keep, by two bisections that each read the row up to 32 times.
    high = _ordered(top) + 1
    low = _ordered(float("-inf") + 0 * top)
    end = high
    while (k < vocab) & (low + 1 < end):  # at least k are >= low, fewer are >= end
        middle = (low & end) + ((low ^ end) >> 1)
        count, _ = _reaching(logits, vocab, middle, top, inverse, BLOCK)
        low = tl.where(count >= k, middle, low)
        end = tl.where(count >= k, end, middle)
    _, total = _reaching(logits, vocab, low, top, inverse, BLOCK)
    while low + 1 < high:  # those >= low have the mass, those >= high do not
        middle = (low & high) + ((low ^ high) >> 1)
        _, part = _reaching(logits, vocab, middle, top, inverse, BLOCK)
        low = tl.where(part >= mass * total, middle, low)
        high = tl.where(part >= mass * total, high, middle)
    return (low ^ ((low >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _reaching(logits, vocab, bound, top, inverse, BLOCK: tl.constexpr):
    # How many logits are at or above a bound, in the order of `_ordered`, and their mass in units of the likeliest one.
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
    # The race by reading all of the row; `token` has the largest logit, and wins where no other has a chance.
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
            searching = tl.sum(count, 0) >= k  # it is not one of the k largest, nor is any below it
    return token


@triton.jit
def _score(x, ids, floor, top, inverse, key):
    # sampler.draw's clock, -log u; the largest logit is taken off for precision.
    u = ((_mix(_mix(_bits(ids)) ^ key) >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608)
    return tl.where(x >= floor, (x - top) * inverse - tl.log(-tl.log(u)), float("-inf"))


@triton.jit
def _mix(x):
    # kernels/hash.mix, on uint32
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
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
