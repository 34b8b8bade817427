"""Deterministic forms of the ops: a token gets the same bits alone, in any batch and under any chunking.

A library's matrix product sums in an order that depends on the number of rows, so here every product has ROWS rows.
A vectorised loop computes its remainder by other code, and the split between threads decides which elements those
are. Elementwise functions therefore run on pieces that are too small to split and a multiple of every vector width.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from genwright.kernels import PAGE
from genwright.quant.packed import Weight
from genwright.text.cache.layout import LayerCache
from genwright.text.config import Attention, Mla, Moe
from genwright.text.ops import moe as plain
from genwright.text.ops.latent_attention import up_projections
from genwright.text.ops.step import Step

ROWS = 16  # of every matrix product
# From page numbers to their keys and values, float32 [pages, PAGE, kv_heads, width]; the two widths may differ.
ReadPages = Callable[[Tensor], tuple[Tensor, Tensor]]
PIECE = 1 << 15  # elements; PyTorch does not split so few between threads


def linear(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    matrix = plain.dense(weight, x.dtype)
    return by_tiles(lambda tile: F.linear(tile, matrix, bias), x)


def route(logits: Tensor, bias: Tensor | None, moe: Moe) -> tuple[Tensor, Tensor]:
    """Route one token at a time."""
    parts = [plain.route(row, bias, moe) for row in logits.split(1)]
    topk_weights, ids = (torch.cat(part) for part in zip(*parts, strict=True))
    return topk_weights, ids


def experts(x: Tensor, ids: Tensor, gate_up: Weight, down: Weight, product: plain.Product) -> Tensor:
    """Run one expert at a time, by a deterministic product."""
    y = x.new_empty(*ids.shape, x.shape[1])
    for expert in ids.unique().tolist():
        tokens, choice = (ids == expert).nonzero(as_tuple=True)
        gate, up = product(x[tokens], gate_up[expert]).chunk(2, dim=-1)
        y[tokens, choice] = product(by_rows(F.silu, gate) * up, down[expert])
    return y


def weighted_sum(y: Tensor, topk_weights: Tensor) -> Tensor:
    """Add the experts' outputs in a fixed order."""
    first, *rest = (y.float() * topk_weights[..., None]).unbind(1)
    return sum(rest, first).to(y.dtype)


def keys_values(cache: LayerCache, pages: Tensor) -> tuple[Tensor, Tensor]:
    return cache.read("k", pages, torch.float32), cache.read("v", pages, torch.float32)


def latent_attend(q: Tensor, kv_b: Tensor, mla: Mla, attention: Attention, cache: LayerCache, step: Step) -> Tensor:
    """Always the absorbed form, because the choice of the cheaper form depends on the chunk."""
    key, value = up_projections(kv_b, mla)
    nope, rope = q.split((mla.qk_nope_head_dim, mla.qk_rope_head_dim), dim=-1)
    q = torch.cat((by_tiles(lambda tile: torch.einsum("thn,hnc->thc", tile, key), nope), rope), dim=-1)

    def read(pages: Tensor) -> tuple[Tensor, Tensor]:
        rows = cache.read("latent", pages, torch.float32)[:, :, None]
        return rows, rows[..., : mla.kv_lora_rank]

    output = attend(q, read, attention, cache, step)
    return by_tiles(lambda tile: torch.einsum("thc,hvc->thv", tile, value), output)


def attend(q: Tensor, read: ReadPages, attention: Attention, cache: LayerCache, step: Step) -> Tensor:
    """Online softmax (Milakov & Gimelshein, 2018): each token alone, page by page."""
    page_table, window = step.page_tables[cache.group], attention.window
    no_keys, no_values = read(page_table[0, :0])
    kv_heads, width = no_keys.shape[2], no_values.shape[3]
    sequence = torch.repeat_interleave(torch.arange(len(step.lengths), device=q.device), step.offsets.diff())
    # [tokens, kv_heads, heads_per_kv, head_dim]
    queries: Tensor = q.unflatten(1, (kv_heads, -1)).float() * attention.scale
    maximum = torch.full_like(queries[..., 0], float("-inf"))
    total, output = torch.zeros_like(maximum), queries.new_zeros(*maximum.shape, width)
    for page in range(page_table.shape[1]):
        reached = step.positions >= page * PAGE
        if window is not None:
            reached &= step.positions - window < (page + 1) * PAGE - 1
        if not reached.any():
            continue  # no query's window reaches this page
        for tokens in reached.nonzero()[:, 0].split(ROWS):
            # A short tile is padded with its first token, which gets the same bits each time.
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
            new_maximum = torch.maximum(maximum[tokens], scores.amax(dim=-1))
            p = _by_pieces(torch.exp, scores - new_maximum[..., None])
            rescale = _exp(maximum[tokens] - new_maximum)
            total[tokens] = total[tokens] * rescale + p.sum(dim=-1)
            output[tokens] = output[tokens] * rescale[..., None] + torch.matmul(p, v)
            maximum[tokens] = new_maximum
    return (output / total[..., None]).flatten(1, 2).to(q.dtype)


def by_tiles(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a matrix product to tiles of ROWS tokens; the last tile is padded."""
    padding = (0, 0) * (x.dim() - 1) + (0, -len(x) % ROWS)
    return torch.cat([function(tile) for tile in F.pad(x, padding).split(ROWS)])[: len(x)]


def by_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply an elementwise function to a matrix of any width."""
    padded = F.pad(x, (0, -x.shape[1] % PAGE)).contiguous()
    return _by_pieces(function, padded)[:, : x.shape[1]]


def _by_pieces(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply an elementwise function to a contiguous tensor whose last dimension is a multiple of PAGE."""
    return torch.cat([function(piece) for piece in x.view(-1).split(PIECE)]).view(x.shape)


def _exp(x: Tensor) -> Tensor:
    """exp of a tensor of any shape; each value is repeated to fill a row."""
    return _by_pieces(torch.exp, x.reshape(-1, 1).repeat(1, PAGE))[:, 0].view(x.shape)
