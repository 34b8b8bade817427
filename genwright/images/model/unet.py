"""The ADM UNet (Dhariwal and Nichol 2021) with the key names of the published consistency_models checkpoints.

Parameters are in containers that give them their published names; `forward` of each block computes with them.
Activations are channels-last throughout.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from genwright.images.model.blocks import add_residual, conv, norm_act, resample
from genwright.images.model.unet_config import GROUPS, UNetConfig


class Downsample(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.op = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        return self.op(x)


class Upsample(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        return self.conv(resample(x, "up"))


class InputConv(nn.Conv2d):
    def forward(self, x: Tensor, emb: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)


class ResBlock(nn.Module):
    """Two convolutions with the embedding between them; `resampled` ("up" or "down") changes the size."""

    def __init__(self, config: UNetConfig, channels: int, out_channels: int, resampled: str | None = None):
        super().__init__()
        self.resampled = resampled
        self.scale_shift = config.use_scale_shift_norm
        emb_channels = 4 * config.num_channels
        self.in_layers: Any = nn.Sequential(
            nn.GroupNorm(GROUPS, channels), nn.SiLU(), nn.Conv2d(channels, out_channels, 3, padding=1)
        )
        self.emb_layers: Any = nn.Sequential(nn.SiLU(), nn.Linear(emb_channels, out_channels * (1 + self.scale_shift)))
        self.out_layers: Any = nn.Sequential(
            nn.GroupNorm(GROUPS, out_channels),
            nn.SiLU(),
            nn.Dropout(config.dropout),
            nn.Conv2d(out_channels, out_channels, 3, padding=1),
        )
        same = channels == out_channels
        self.skip_connection: Any = nn.Identity() if same else nn.Conv2d(channels, out_channels, 1)

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        # x [N, channels, H, W], emb [N, 4 * num_channels], already through SiLU -> [N, out_channels, H', W']
        in_norm, _, in_conv = self.in_layers
        out_norm, _, dropout, out_conv = self.out_layers
        emb = self.emb_layers[1](emb)
        h = norm_act(x, in_norm, resampled=self.resampled)
        x = resample(x, self.resampled)
        h = conv(h, in_conv)
        if self.scale_shift:
            scale, shift = emb.chunk(2, dim=1)
            h = norm_act(h, out_norm, add=in_conv.bias, scale=scale, shift=shift)
        else:
            h = norm_act(h, out_norm, add=in_conv.bias + emb)
        h = conv(dropout(h), out_conv)
        bias = out_conv.bias
        if isinstance(self.skip_connection, nn.Conv2d):
            bias = bias + self.skip_connection.bias
            x = conv(x, self.skip_connection)
        return add_residual(h, x, bias)


class AttentionBlock(nn.Module):
    """Self-attention over the pixels; the rows of qkv are queries, then keys, then values."""

    def __init__(self, channels: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.qkv: Any = nn.Conv2d(channels, 3 * channels, 1)
        self.proj_out: Any = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        n, c, height, width = x.shape
        tokens = norm_act(x, self.norm, silu=False).permute(0, 2, 3, 1).reshape(n, height * width, c)
        qkv = F.linear(tokens, self.qkv.weight.view(3 * c, c), self.qkv.bias)
        q, k, v = qkv.view(n, height * width, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        tokens = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, height * width, c)
        h = F.linear(tokens, self.proj_out.weight.view(c, c))
        return add_residual(h.view(n, height, width, c).permute(0, 3, 1, 2), x, self.proj_out.bias)


class Stage(nn.Sequential):
    """The layers between two skip connections."""

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:  # type: ignore[override]
        for layer in self:
            x = layer(x, emb)
        return x


class UNet(nn.Module):
    """x [N, 3, H, W], t [N] and labels [N] (class-conditional models only) -> [N, 3, H, W].

    With `recompute`, training computes the activations of each stage again for the backward pass, to save memory.
    """

    def __init__(self, config: UNetConfig, recompute: bool = False):
        super().__init__()
        self.config, self.recompute = config, recompute
        emb_channels = 4 * config.num_channels
        self.time_embed: Any = nn.Sequential(
            nn.Linear(config.num_channels, emb_channels), nn.SiLU(), nn.Linear(emb_channels, emb_channels)
        )
        if config.num_classes is not None:
            self.label_emb = nn.Embedding(config.num_classes, emb_channels)

        widths = [int(mult * config.num_channels) for mult in config.channel_mult]
        channels = widths[0]
        self.input_blocks = nn.ModuleList([Stage(InputConv(3, channels, 3, padding=1))])
        skips = [channels]
        for level, width in enumerate(widths):
            for _ in range(config.num_res_blocks):
                layers: list[nn.Module] = [ResBlock(config, channels, width)]
                channels = width
                if config.attends(2**level):
                    layers.append(AttentionBlock(channels, config.heads(channels)))
                self.input_blocks.append(Stage(*layers))
                skips.append(channels)
            if level < len(widths) - 1:
                down = ResBlock(config, channels, channels, "down") if config.resblock_updown else Downsample(channels)
                self.input_blocks.append(Stage(down))
                skips.append(channels)

        self.middle_block = Stage(
            ResBlock(config, channels, channels),
            AttentionBlock(channels, config.heads(channels)),
            ResBlock(config, channels, channels),
        )

        self.output_blocks = nn.ModuleList()
        for level, width in reversed(list(enumerate(widths))):
            for i in range(config.num_res_blocks + 1):
                layers = [ResBlock(config, channels + skips.pop(), width)]
                channels = width
                if config.attends(2**level):
                    layers.append(AttentionBlock(channels, config.heads(channels, up=True)))
                if level and i == config.num_res_blocks:
                    layers.append(
                        ResBlock(config, channels, channels, "up") if config.resblock_updown else Upsample(channels)
                    )
                self.output_blocks.append(Stage(*layers))

        self.out: Any = nn.Sequential(nn.GroupNorm(GROUPS, channels), nn.SiLU(), nn.Conv2d(channels, 3, 3, padding=1))

    def use_dtype(self, dtype: torch.dtype) -> "UNet":
        """Convert the convolutions; embeddings and norms stay in float32, as in the published fp16 models."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                module.to(dtype)
        return self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor, t: Tensor, labels: Tensor | None = None) -> Tensor:
        emb = self.time_embed(timestep_embedding(t, self.config.num_channels).to(self.time_embed[0].weight.dtype))
        if self.config.num_classes is not None:
            emb = emb + self.label_emb(labels)
        emb = F.silu(emb)
        h = x.to(self.out[2].weight.dtype).contiguous(memory_format=torch.channels_last)
        skips = []
        for stage in self.input_blocks:
            h = self._run(stage, h, emb)
            skips.append(h)
        h = self._run(self.middle_block, h, emb)
        for stage in self.output_blocks:
            h = self._run(stage, torch.cat([h, skips.pop()], dim=1), emb)
        return self.out[2](norm_act(h, self.out[0])).to(x.dtype)

    def _run(self, stage: nn.Module, h: Tensor, emb: Tensor) -> Tensor:
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(stage, h, emb, use_reentrant=False)
        return stage(h, emb)


def timestep_embedding(t: Tensor, dim: int) -> Tensor:
    """Cosines, then sines, of t at geometric frequencies from 1 to 1/10,000: [N] -> [N, dim]."""
    half = dim // 2
    frequencies = torch.exp(-math.log(10_000) / half * torch.arange(half, dtype=torch.float32, device=t.device))
    angles = t[:, None].to(torch.promote_types(t.dtype, torch.float32)) * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def new_unet(config: UNetConfig, seed: int) -> UNet:
    """A UNet to train: PyTorch's initial weights, but 0 in the last layer of every block and of the network."""
    torch.manual_seed(seed)
    unet = UNet(config)
    zero_last_layers(unet)
    return unet


def zero_last_layers(unet: UNet) -> None:
    """Set the last layer of every block and of the network to 0."""
    last = [block.out_layers[3] for block in unet.modules() if isinstance(block, ResBlock)]
    last += [block.proj_out for block in unet.modules() if isinstance(block, AttentionBlock)]
    for layer in (*last, unet.out[2]):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
