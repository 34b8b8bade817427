"""Deterministic forms of the ops: bitwise the same result alone, in any batch and under any chunking.

A library's product sums in an order that depends on the number of rows, so every product here has the same number. A
vector loop computes the elements that fill no whole vector by other code, and the splits between threads decide which
ones those are, so functions of elements run on pieces too small to split and a multiple of any vector's width.
"""

from collections.abc import Callable

import torch
from torch.nn import functional as F

from genwright.kernels import PAGE
from genwright.quant.packed import Packed, Weight
from genwright.text.cache.layout import LayerCache
from genwright.text.config import Attention, Mla, Moe
from genwright.text.ops import moe as plain
from genwright.text.ops.latent_attention import up_projections
from genwright.text.ops.step import Step

ROWS = 16  # of every matrix product
# Keys and values of some pages, float32 [pages, PAGE, kv_heads, head_dim], the latter's width perhaps another.
ReadPages = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
PIECE = 1 << 15  # elements: torch does not share out fewer among threads


def linear(x: torch.Tensor, weight: Weight, bias: torch.Tensor | None) -> torch.Tensor:
    matrix = weight.dequantize(x.dtype) if isinstance(weight, Packed) else weight
    return by_tiles(lambda tile: F.linear(tile, matrix, bias), x)


def route(logits: torch.Tensor, bias: torch.Tensor | None, moe: Moe) -> tuple[torch.Tensor, torch.Tensor]:
    """A token at a time."""
    parts = [plain.route(row, bias, moe) for row in logits.split(1)]
    shares, ids = (torch.cat(part) for part in zip(*parts, strict=True))
    return shares, ids


def experts(x: torch.Tensor, ids: torch.Tensor, gate_up: Weight, down: Weight, product: plain.Product) -> torch.Tensor:
    """An expert at a time, by a deterministic product."""
    y = x.new_empty(*ids.shape, x.shape[1])
    for expert in ids.unique().tolist():
        tokens, place = (ids == expert).nonzero(as_tuple=True)
        gate, up = product(x[tokens], gate_up[expert]).chunk(2, dim=-1)
        y[tokens, place] = product(by_rows(F.silu, gate) * up, down[expert])
    return y


def weighted_sum(y: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """One summand after the other."""
    wide = y.float() * shares[..., None]
    mixed = wide[:, 0]
    for place in range(1, y.shape[1]):
        mixed = mixed + wide[:, place]
    return mixed.to(y.dtype)


def keys_values(cache: LayerCache, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return cache.read("k", pages, torch.float32), cache.read("v", pages, torch.float32)


def latent_attend(
    q: torch.Tensor, kv_b: torch.Tensor, mla: Mla, attention: Attention, cache: LayerCache, step: Step
) -> torch.Tensor:
    """Always absorbed, because which form needs less arithmetic depends on the chunk."""
    key, value = up_projections(kv_b, mla)
    nope, rope = q.split((mla.qk_nope_head_dim, mla.qk_rope_head_dim), dim=-1)
    q = torch.cat((by_tiles(lambda tile: torch.einsum("thn,hnc->thc", tile, key), nope), rope), dim=-1)

    def read(pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = cache.read("latent", pages, torch.float32)[:, :, None]
        return rows, rows[..., : mla.kv_lora_rank]

    mixed = attend(q, read, attention, cache, step)
    return by_tiles(lambda tile: torch.einsum("thc,hvc->thv", tile, value), mixed)


def attend(q: torch.Tensor, read: ReadPages, attention: Attention, cache: LayerCache, step: Step) -> torch.Tensor:
    """Online softmax (Milakov & Gimelshein, 2018), each token for itself and page after page."""
    page_table, window = step.page_tables[cache.group], attention.window
    nothing = read(page_table[0, :0])
    kv_heads, width = nothing[0].shape[2], nothing[1].shape[3]
    sequence = torch.repeat_interleave(torch.arange(len(step.lengths), device=q.device), step.offsets.diff())
    # [tokens, kv_heads, share, head_dim]
    queries: torch.Tensor = q.unflatten(1, (kv_heads, -1)).float() * attention.scale
    most = torch.full_like(queries[..., 0], float("-inf"))
    total, mixed = torch.zeros_like(most), queries.new_zeros(*most.shape, width)
    for page in range(page_table.shape[1]):
        reached = step.positions >= page * PAGE
        if window is not None:
            reached &= step.positions - window < (page + 1) * PAGE - 1
        if not reached.any():
            continue  # all queries' windows have moved past this page
        for tokens in reached.nonzero()[:, 0].split(ROWS):
            # A short tile computes its first token again and again, each time to the same bits.
            tokens = torch.cat((tokens, tokens[:1].expand(ROWS - len(tokens))))
            ids = page_table[sequence[tokens], page]
            k, v = (rows.transpose(1, 2) for rows in read(ids))  # [t, kv_heads, PAGE, head_dim]
            scores = torch.matmul(queries[tokens], k.transpose(2, 3))
            position = step.positions[tokens, None]
            key = torch.arange(page * PAGE, (page + 1) * PAGE, device=q.device)
            hidden = key > position
            if window is not None:
                hidden |= key <= position - window
            scores.masked_fill_(hidden[:, None, None], float("-inf"))
            new_most = torch.maximum(most[tokens], scores.amax(dim=-1))
            p = _by_pieces(torch.exp, scores - new_most[..., None])
            shrink = _exp(most[tokens] - new_most)
            total[tokens] = total[tokens] * shrink + p.sum(dim=-1)
            mixed[tokens] = mixed[tokens] * shrink[..., None] + torch.matmul(p, v)
            most[tokens] = new_most
    return (mixed / total[..., None]).flatten(1, 2).to(q.dtype)


def by_tiles(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Apply a product to ROWS tokens at a time, the last of them padded."""
    padding = (0, 0) * (x.dim() - 1) + (0, -len(x) % ROWS)
    return torch.cat([function(tile) for tile in F.pad(x, padding).split(ROWS)])[: len(x)]


def by_rows(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Apply a function of elements to a matrix of any width."""
    padded = F.pad(x, (0, -x.shape[1] % PAGE)).contiguous()
    return _by_pieces(function, padded)[:, : x.shape[1]]


def _by_pieces(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Apply a function of elements to a contiguous tensor whose last dimension is a multiple of PAGE."""
    return torch.cat([function(piece) for piece in x.view(-1).split(PIECE)]).view(x.shape)


def _exp(x: torch.Tensor) -> torch.Tensor:
    """exp of any shape: one value fills a row of its own."""
    return _by_pieces(torch.exp, x.reshape(-1, 1).repeat(1, PAGE))[:, 0].view(x.shape)
