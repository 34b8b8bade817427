"""The two orders of rotary channels: neighbours rotate in Meta's files and GGUF, halves in Hugging Face's and ours."""

import torch


def halves_from_neighbours(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder the rows of a q or k projection [heads * head_dim, ...] from Meta's order to Hugging Face's."""
    return weight.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)


def neighbours_from_halves(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """The inverse."""
    return weight.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)
