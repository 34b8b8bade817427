"""Deterministic mode: bitwise the same logits alone, in any batch and under any chunking.

A library's product sums in an order that depends on the number of rows, so every product here has the same number. A
vector loop computes the elements that fill no whole vector by other code, and the splits between threads decide which
ones those are, so functions of elements run here on pieces too small to split and a multiple of any vector's width.
"""

from collections.abc import Callable

import torch
from torch.nn.functional import linear, pad, silu

from genwright.text.engine.kv import PAGE, LayerCache
from genwright.text.engine.step import Step
from genwright.text.layers.reference import Reference, Weights

ROWS = 16  # of every matrix product
PIECE = 1 << 15  # elements: torch does not share out fewer among threads


class Deterministic(Reference):
    """The reference's ops with fixed shapes, and attention reduced in page order."""

    def linear(self, x: torch.Tensor, weights: Weights, name: str) -> torch.Tensor:
        weight, bias = weights[name], weights.get(f"{name}.bias")
        padded = pad(x, (0, 0, 0, -len(x) % ROWS))
        return torch.cat([linear(tile, weight, bias) for tile in padded.split(ROWS)])[: len(x)]

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        padded = pad(x, (0, -x.shape[1] % PAGE)).contiguous()
        return _by_pieces(silu, padded)[:, : x.shape[1]]

    def attend(self, q: torch.Tensor, cache: LayerCache, step: Step, scale: float, window: int | None) -> torch.Tensor:
        """Online softmax (Milakov & Gimelshein, 2018), each token for itself and page after page."""
        keys, values = cache.rows["k"], cache.rows["v"]  # [pages, PAGE, kv_heads, head_dim]
        kv_heads = keys.shape[2]
        sequence = torch.repeat_interleave(torch.arange(len(step.lengths), device=q.device), step.offsets.diff())
        queries = q.unflatten(1, (kv_heads, -1)).float() * scale  # [tokens, kv_heads, share, head_dim]
        most = torch.full_like(queries[..., 0], float("-inf"))
        total, mixed = torch.zeros_like(most), torch.zeros_like(queries)
        for page in range(step.page_table.shape[1]):
            reached = step.positions >= page * PAGE
            if window is not None:
                reached &= step.positions - window < (page + 1) * PAGE - 1
            if not reached.any():
                continue  # all queries' windows have moved past this page
            for tokens in reached.nonzero()[:, 0].split(ROWS):
                # A short tile computes its first token again and again, each time to the same bits.
                tokens = torch.cat((tokens, tokens[:1].expand(ROWS - len(tokens))))
                ids = step.page_table[sequence[tokens], page]
                k, v = (rows[ids].float().transpose(1, 2) for rows in (keys, values))  # [t, kv_heads, PAGE, head_dim]
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
        return (mixed / total[..., None]).flatten(1).to(q.dtype)


def _by_pieces(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Apply a function of elements to a contiguous tensor whose last dimension is a multiple of PAGE."""
    return torch.cat([function(piece) for piece in x.view(-1).split(PIECE)]).view(x.shape)


def _exp(x: torch.Tensor) -> torch.Tensor:
    """exp of any shape: one value fills a row of its own."""
    return _by_pieces(torch.exp, x.reshape(-1, 1).repeat(1, PAGE))[:, 0].view(x.shape)
