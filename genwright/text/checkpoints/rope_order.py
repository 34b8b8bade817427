"""Two orders of rotary channels: Meta and GGUF rotate neighbouring channels, Hugging Face and Genwright halves."""

import torch

from genwright.text.architectures.weight_map import Part


def halves_from_neighbours(weight: torch.Tensor, head_dim: int, part: Part | None = None) -> torch.Tensor:
    """Rows of a q or k projection [heads * head_dim, ...] from Meta's order to Hugging Face's, all or a part."""
    order = torch.arange(len(weight)).unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten()
    if part is not None and part.axis == 0:
        order = order.narrow(*part)
    elif part is not None:
        weight = weight.narrow(*part)
    return weight.index_select(0, order)  # copies whole rows, unlike weight[order]


def neighbours_from_halves(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """The inverse."""
    return weight.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)
