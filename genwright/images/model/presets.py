"""The UNet shapes of the published consistency_models checkpoints, as data."""

from dataclasses import replace
from typing import Any

from genwright.arguments import one_of
from genwright.errors import UserError
from genwright.images.model.unet_config import UNetConfig

_LSUN_256 = UNetConfig(
    image_size=256,
    num_channels=256,
    num_res_blocks=2,
    channel_mult=(1, 1, 2, 2, 4, 4),
    num_head_channels=64,
    use_scale_shift_norm=False,
    resblock_updown=True,
)

# The edm_*, cd_* and ct_* files of a data set have the same shape.
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

# The original's default channel_mult by image size.
CHANNEL_MULT: dict[int, tuple[float, ...]] = {
    512: (0.5, 1, 1, 2, 2, 4, 4),
    256: (1, 1, 2, 2, 4, 4),
    128: (1, 1, 2, 3, 4),
    64: (1, 2, 3, 4),
}
IMAGENET_CLASSES = 1000


def default_channel_mult(image_size: int) -> tuple[float, ...]:
    """The original's channel_mult of a size, or that of 64 pixels without the levels that cannot be halved."""
    if image_size in CHANNEL_MULT:
        return CHANNEL_MULT[image_size]
    mult = CHANNEL_MULT[64]
    halvings = (image_size & -image_size).bit_length() - 1
    return mult[: halvings + 1]


def unet_config(preset: str | None, class_cond: bool | None = None, **flags: Any) -> UNetConfig | None:
    """The shape of a preset, or the original's default, with `flags` that are not None; None if nothing is given."""
    if preset is not None:
        one_of("preset", preset, PRESETS)
    given = {name: value for name, value in flags.items() if value is not None}
    if class_cond is not None:
        given["num_classes"] = IMAGENET_CLASSES if class_cond else None
    if preset is None and not given:
        return None
    base = UNetConfig() if preset is None else PRESETS[preset]
    size = given.get("image_size", base.image_size)
    if size != base.image_size and "channel_mult" not in given:
        if size not in CHANNEL_MULT:
            sizes = ", ".join(map(str, CHANNEL_MULT))
            raise UserError(f"channel_mult must be given for image size {size}; only {sizes} have a default.")
        given["channel_mult"] = CHANNEL_MULT[size]
    return replace(base, **given)
