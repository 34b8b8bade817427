"""UNetConfig: a UNet's shape; imports no torch, because the command line reads its flags from it."""

import math
from dataclasses import dataclass

from genwright.arguments import counted, setting
from genwright.errors import UserError

GROUPS = 32  # of the group norms
DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class UNetConfig:
    """A UNet's shape; names and defaults are those of the original's flags."""

    image_size: int = setting(64, "Pixels per side.")
    num_channels: int = setting(128, "Channels of the first level.")
    num_res_blocks: int = setting(2, "Residual blocks per level.")
    channel_mult: tuple[float, ...] = setting(
        (1, 2, 3, 4), "Channels of every level, as multiples of num_channels, joined by commas.", commas=True
    )
    attention_resolutions: tuple[int, ...] = setting(
        (32, 16, 8), "Resolutions with attention, joined by commas.", commas=True
    )
    num_heads: int = setting(4, "Attention heads.")
    num_heads_upsample: int = setting(-1, "Attention heads of the upsampling half; -1: num_heads.")
    num_head_channels: int = setting(-1, "Channels per attention head, in place of num_heads; -1: not used.")
    num_classes: int | None = None
    use_scale_shift_norm: bool = setting(True, "Let the embedding scale and shift the norm.")
    resblock_updown: bool = setting(False, "Resample in residual blocks.")
    dropout: float = 0.0

    def __post_init__(self) -> None:
        levels = len(self.channel_mult)
        if min(self.image_size, self.num_channels, self.num_res_blocks, levels) < 1:
            raise UserError(
                "image_size, num_channels, num_res_blocks and the length of channel_mult must be 1 or more."
            )
        if self.image_size % 2 ** (levels - 1):
            raise UserError(
                f"image_size must be a multiple of {2 ** (levels - 1)}, not {self.image_size}, because the levels of "
                f"channel_mult halve it {counted(levels - 1, 'time')}."
            )
        if min(self.attention_resolutions, default=1) < 1:
            raise UserError(f"attention_resolutions must be 1 or more, not {min(self.attention_resolutions)}.")
        for mult in self.channel_mult:
            if not math.isfinite(mult):
                raise UserError(f"channel_mult must hold finite numbers, not {mult}.")
            channels = int(mult * self.num_channels)
            if channels < 1 or channels % GROUPS:
                raise UserError(f"Every level must have a multiple of {GROUPS} channels, not {channels}.")
            if channels % self.heads(channels) or channels % self.heads(channels, up=True):
                raise UserError(f"{channels} channels do not split evenly into attention heads.")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout must be 0 or more and below 1, not {self.dropout:g}.")
        if self.num_classes is not None and self.num_classes < 1:
            raise UserError(f"num_classes must be 1 or more, not {self.num_classes}.")

    def heads(self, channels: int, up: bool = False) -> int:
        """The number of attention heads of a block."""
        if self.num_head_channels > 0:
            return max(1, channels // self.num_head_channels)
        heads = self.num_heads_upsample if up and self.num_heads_upsample > 0 else self.num_heads
        return max(1, heads)

    def attends(self, stride: int) -> bool:
        """Whether blocks at 1/stride of the image's resolution have attention."""
        return stride in {self.image_size // resolution for resolution in self.attention_resolutions}
