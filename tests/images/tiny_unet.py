"""A UNet shape for tests."""

from genwright.images.model.unet_config import UNetConfig

TINY = UNetConfig(
    image_size=16,
    num_channels=32,
    num_res_blocks=1,
    channel_mult=(1, 2),
    attention_resolutions=(8,),
    num_head_channels=32,
    num_classes=10,
    resblock_updown=True,
)
