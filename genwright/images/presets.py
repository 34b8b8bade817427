"""The UNet shapes of the published consistency_models checkpoints, as data."""

from genwright.images.unet import UNetConfig

_LSUN_256 = UNetConfig(
    image_size=256,
    num_channels=256,
    num_res_blocks=2,
    channel_mult=(1, 1, 2, 2, 4, 4),
    num_head_channels=64,
    use_scale_shift_norm=False,
    resblock_updown=True,
)

# edm_*, cd_* and ct_* files of one data set share one shape.
PRESETS = {
    "imagenet64": UNetConfig(
        image_size=64,
        num_channels=192,
        num_res_blocks=3,
        channel_mult=(1, 2, 3, 4),
        num_head_channels=64,
        num_classes=1000,
        resblock_updown=True,
    ),
    "bedroom256": _LSUN_256,
    "cat256": _LSUN_256,
}
