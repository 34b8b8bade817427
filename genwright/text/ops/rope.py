"""Rotary position embedding (Su et al., 2021), in the half-split order of Hugging Face checkpoints."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from genwright.text.config import Rope


def frequencies(rope: Rope, head_dim: int, context: int = 0) -> tuple[Tensor, float]:
    """The angle per position of each pair of channels [head_dim / 2], and the factor that cos and sin are scaled by.

    `context` is the maximum sequence length. Scalings that depend on the length (dynamic, longrope) use it instead of
    each sequence's own length, because cached keys keep their rotation and prefixes are shared.
    """
    settings, theta = rope.settings, rope.theta
    if rope.kind == "dynamic":  # NTK-aware: the base grows with the context
        stretch = max(context / settings["original_max_position_embeddings"], 1.0)
        theta *= (settings["factor"] * (stretch - 1) + 1) ** (head_dim / (head_dim - 2))
    inv_freq = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    if rope.kind == "linear":
        return inv_freq / settings["factor"], 1.0
    if rope.kind == "factors":
        return inv_freq / torch.tensor(settings["factors"], dtype=torch.float32), 1.0
    if rope.kind == "llama3":
        return _llama3(inv_freq, settings), 1.0
    if rope.kind == "yarn":
        return _yarn(inv_freq, rope, head_dim)
    if rope.kind == "longrope":
        return _longrope(inv_freq, settings, context)
    if rope.kind == "proportional":  # the other channels do not rotate
        inv_freq[int(settings["partial_rotary_factor"] * head_dim // 2) :] = 0
        return inv_freq / settings.get("factor", 1.0), 1.0
    return inv_freq, 1.0


def cos_sin(inv_freq: Tensor, scale: float, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of every position's angles, [tokens, 1, head_dim / 2] in float32."""
    angles = positions.float()[:, None, None] * inv_freq
    return angles.cos() * scale, angles.sin() * scale


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate channels i and i + head_dim / 2 of x [tokens, heads, head_dim]; cos and sin [tokens, 1, head_dim / 2]."""
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1).to(x.dtype)


def _llama3(inv_freq: Tensor, settings: Mapping[str, Any]) -> Tensor:
    """Llama 3.1: divide low frequencies by `factor`, keep high ones, and interpolate between them."""
    low, high = settings["low_freq_factor"], settings["high_freq_factor"]
    turns = settings["original_max_position_embeddings"] * inv_freq / (2 * math.pi)  # within the original context
    smooth: Tensor = ((turns - low) / (high - low)).clamp(0, 1)
    scaled: Tensor = inv_freq / settings["factor"]
    return inv_freq * smooth + scaled * (1 - smooth)


def _yarn(inv_freq: Tensor, rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    """YaRN (Peng et al., 2023): a ramp over channels between interpolation and extrapolation, sections 3.2 to 3.4."""
    settings, factor = rope.settings, rope.settings["factor"]
    original = settings["original_max_position_embeddings"]

    def channel(turns: float) -> float:  # the channel that makes `turns` turns within the original context
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = channel(settings.get("beta_fast", 32)), channel(settings.get("beta_slow", 1))
    if settings["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = ((torch.arange(head_dim // 2).float() - low) / max(high - low, 0.001)).clamp(0, 1)
    return inv_freq / factor * ramp + inv_freq * (1 - ramp), settings.get("attention_factor", _temperature(settings))


def _longrope(inv_freq: Tensor, settings: Mapping[str, Any], context: int) -> tuple[Tensor, float]:
    """LongRoPE (Ding et al., 2024): a factor per frequency; contexts beyond the original have a list of their own."""
    original = settings["original_max_position_embeddings"]
    factors = torch.tensor(settings["long_factor" if context > original else "short_factor"], dtype=torch.float32)
    default = math.sqrt(1 + math.log(max(settings["factor"], 1.0)) / math.log(original))
    return inv_freq / factors, settings.get("attention_factor", default)


def _temperature(settings: Mapping[str, Any]) -> float:
    """YaRN's factor of cos and sin; DeepSeek applies a part of it, or all, in the softmax scale instead."""

    def mscale(share: float) -> float:
        return 0.1 * share * math.log(settings["factor"]) + 1.0 if settings["factor"] > 1 else 1.0

    if "mscale" in settings and "mscale_all_dim" in settings:
        return mscale(settings["mscale"]) / mscale(settings["mscale_all_dim"])
    return mscale(1.0)
