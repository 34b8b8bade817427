"""UNetModel: the original's constructor and half precision over Genwright's UNet, whose key names are the same."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from genwright.errors import UserError
from genwright.images.model.checkpoint import check_state
from genwright.images.model.unet import UNet, timestep_embedding, zero_last_layers
from genwright.images.model.unet_config import UNetConfig

__all__ = ["UNetModel", "timestep_embedding"]


class UNetModel(UNet):
    """`attention_resolutions` are factors of downsampling, as in the original.

    `use_new_attention_order` changes nothing, as in the original.
    """

    def __init__(
        self,
        image_size: int,
        in_channels: int,
        model_channels: int,
        out_channels: int,
        num_res_blocks: int,
        attention_resolutions: Sequence[int],
        dropout: float = 0,
        channel_mult: Sequence[float] = (1, 2, 4, 8),
        conv_resample: bool = True,
        dims: int = 2,
        num_classes: int | None = None,
        use_checkpoint: bool = False,
        use_fp16: bool = False,
        num_heads: int = 1,
        num_head_channels: int = -1,
        num_heads_upsample: int = -1,
        use_scale_shift_norm: bool = False,
        resblock_updown: bool = False,
        use_new_attention_order: bool = False,
    ):
        if (in_channels, out_channels, conv_resample, dims) != (3, 3, True, 2):
            raise UserError(
                "UNetModel is for images of 3 channels and resamples with convolutions; learn_sigma, which needs 6 "
                "channels, has no place in Karras diffusion."
            )
        config = UNetConfig(
            image_size=image_size,
            num_channels=model_channels,
            num_res_blocks=num_res_blocks,
            channel_mult=tuple(channel_mult),
            attention_resolutions=tuple(
                image_size // factor for factor in attention_resolutions if factor and image_size % factor == 0
            ),
            num_heads=num_heads,
            num_heads_upsample=num_heads_upsample,
            num_head_channels=num_head_channels,
            num_classes=num_classes,
            use_scale_shift_norm=use_scale_shift_norm,
            resblock_updown=resblock_updown,
            dropout=dropout,
        )
        super().__init__(config, recompute=use_checkpoint)
        zero_last_layers(self)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.image_size, self.num_classes = image_size, num_classes
        self.dtype = torch.float16 if use_fp16 else torch.float32  # what is asked for; convert_to_fp16 converts

    def convert_to_fp16(self) -> None:
        """Compute in half precision: convolutions do, embeddings and norms stay in float32."""
        self.use_dtype(torch.float16)

    def convert_to_fp32(self) -> None:
        self.use_dtype(torch.float32)

    def forward(self, x: Tensor, timesteps: Tensor, y: Tensor | None = None) -> Tensor:
        if (y is None) != (self.num_classes is None):
            raise UserError("Labels y must be given to a class-conditional model, and to no other.")
        return super().forward(x, timesteps, y)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        if strict:
            check_state("state_dict", state_dict, {name: tensor.shape for name, tensor in self.state_dict().items()})
        return super().load_state_dict(state_dict, strict, assign)
