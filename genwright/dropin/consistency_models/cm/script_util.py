"""The original's flags and defaults, the models they describe, and schedules of consistency training."""

import argparse
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cm.karras_diffusion import KarrasDenoiser
from cm.unet import UNetModel
from genwright.errors import UserError
from genwright.images.model.presets import CHANNEL_MULT, IMAGENET_CLASSES
from genwright.images.training.noise_levels import adaptive_schedule

NUM_CLASSES = IMAGENET_CLASSES


def cm_train_defaults() -> dict[str, Any]:
    """The flags of cm_train that are not the model's."""
    return {
        "teacher_model_path": "",
        "teacher_dropout": 0.1,
        "training_mode": "consistency_distillation",
        "target_ema_mode": "fixed",
        "scale_mode": "fixed",
        "total_training_steps": 600_000,
        "start_ema": 0.0,
        "start_scales": 40,
        "end_scales": 40,
        "distill_steps_per_iter": 50_000,
        "loss_norm": "lpips",
    }


def model_and_diffusion_defaults() -> dict[str, Any]:
    """The arguments of create_model_and_diffusion; loss_norm is one, so that cm_train's flag reaches the loss."""
    return {
        "sigma_min": 0.002,
        "sigma_max": 80.0,
        "image_size": 64,
        "num_channels": 128,
        "num_res_blocks": 2,
        "num_heads": 4,
        "num_heads_upsample": -1,
        "num_head_channels": -1,
        "attention_resolutions": "32,16,8",
        "channel_mult": "",
        "dropout": 0.0,
        "class_cond": False,
        "use_checkpoint": False,
        "use_scale_shift_norm": True,
        "resblock_updown": False,
        "use_fp16": False,
        "use_new_attention_order": False,
        "learn_sigma": False,
        "weight_schedule": "karras",
        "loss_norm": "lpips",
    }


def create_model_and_diffusion(
    image_size: int,
    class_cond: bool,
    learn_sigma: bool,
    num_channels: int,
    num_res_blocks: int,
    channel_mult: str,
    num_heads: int,
    num_head_channels: int,
    num_heads_upsample: int,
    attention_resolutions: str,
    dropout: float,
    use_checkpoint: bool,
    use_scale_shift_norm: bool,
    resblock_updown: bool,
    use_fp16: bool,
    use_new_attention_order: bool,
    weight_schedule: str,
    sigma_min: float = 0.002,
    sigma_max: float = 80.0,
    distillation: bool = False,
    loss_norm: str = "lpips",
) -> tuple[UNetModel, KarrasDenoiser]:
    """The UNet, and the diffusion around it."""
    model = create_model(
        image_size,
        num_channels,
        num_res_blocks,
        channel_mult=channel_mult,
        learn_sigma=learn_sigma,
        class_cond=class_cond,
        use_checkpoint=use_checkpoint,
        attention_resolutions=attention_resolutions,
        num_heads=num_heads,
        num_head_channels=num_head_channels,
        num_heads_upsample=num_heads_upsample,
        use_scale_shift_norm=use_scale_shift_norm,
        dropout=dropout,
        resblock_updown=resblock_updown,
        use_fp16=use_fp16,
        use_new_attention_order=use_new_attention_order,
    )
    diffusion = KarrasDenoiser(
        sigma_max=sigma_max,
        sigma_min=sigma_min,
        weight_schedule=weight_schedule,
        distillation=distillation,
        loss_norm=loss_norm,
    )
    return model, diffusion


def create_model(
    image_size: int,
    num_channels: int,
    num_res_blocks: int,
    channel_mult: str = "",
    learn_sigma: bool = False,
    class_cond: bool = False,
    use_checkpoint: bool = False,
    attention_resolutions: str = "16",
    num_heads: int = 1,
    num_head_channels: int = -1,
    num_heads_upsample: int = -1,
    use_scale_shift_norm: bool = False,
    dropout: float = 0,
    resblock_updown: bool = False,
    use_fp16: bool = False,
    use_new_attention_order: bool = False,
) -> UNetModel:
    """The UNet of these flags; without a channel_mult, that of the image size."""
    multiples: tuple[float, ...]
    if channel_mult:
        multiples = whole_numbers("channel_mult", channel_mult, 1)
    elif image_size in CHANNEL_MULT:
        multiples = CHANNEL_MULT[image_size]
    else:
        sizes = ", ".join(map(str, CHANNEL_MULT))
        raise UserError(f"--channel_mult must be given for --image_size {image_size}; only {sizes} have a default.")
    resolutions = whole_numbers("attention_resolutions", attention_resolutions, 1)
    return UNetModel(
        image_size=image_size,
        in_channels=3,
        model_channels=num_channels,
        out_channels=6 if learn_sigma else 3,
        num_res_blocks=num_res_blocks,
        attention_resolutions=[image_size // resolution for resolution in resolutions],
        dropout=dropout,
        channel_mult=multiples,
        num_classes=NUM_CLASSES if class_cond else None,
        use_checkpoint=use_checkpoint,
        use_fp16=use_fp16,
        num_heads=num_heads,
        num_head_channels=num_head_channels,
        num_heads_upsample=num_heads_upsample,
        use_scale_shift_norm=use_scale_shift_norm,
        resblock_updown=resblock_updown,
        use_new_attention_order=use_new_attention_order,
    )


def whole_numbers(name: str, text: str, least: int = 0) -> tuple[int, ...]:
    """The numbers of a flag that are joined by commas."""
    try:
        numbers = tuple(map(int, text.split(",")))
    except ValueError:
        numbers = (least - 1,)
    if min(numbers) < least:
        raise UserError(f"--{name} must be whole numbers, {least} or more, joined by commas, not {text!r}.")
    return numbers


def create_ema_and_scales_fn(
    target_ema_mode: str,
    start_ema: float,
    scale_mode: str,
    start_scales: int,
    end_scales: int,
    total_steps: int,
    distill_steps_per_iter: int,
) -> Callable[[int], tuple[float, int]]:
    """The function from a step to the decay of the target's average and the number of noise levels."""

    def fixed(step: int) -> tuple[float, int]:
        return float(start_ema), int(start_scales)

    def progressive(step: int) -> tuple[float, int]:
        return float(start_ema), adaptive_schedule(step, total_steps, start_scales, end_scales, 1.0)[1]

    def adaptive(step: int) -> tuple[float, int]:
        ema, scales = adaptive_schedule(step, total_steps, start_scales, end_scales, start_ema or 1.0)
        return ema if start_ema else 0.0, scales

    def progressive_distillation(step: int) -> tuple[float, int]:
        scales = start_scales // 2 ** (step // distill_steps_per_iter)
        if scales > 2:
            return 1.0, scales
        # The stages of two steps and of one are twice as long.
        since = step - distill_steps_per_iter * (math.log2(start_scales) - 1)
        return 1.0, 2 if since < 2 * distill_steps_per_iter else 1

    modes = {
        ("fixed", "fixed"): fixed,
        ("fixed", "progressive"): progressive,
        ("adaptive", "progressive"): adaptive,
        ("fixed", "progdist"): progressive_distillation,
    }
    if (target_ema_mode, scale_mode) not in modes:
        pairs = "; ".join(" and ".join(pair) for pair in modes)
        raise UserError(
            f"--target_ema_mode {target_ema_mode} and --scale_mode {scale_mode} do not go together; these do: {pairs}."
        )
    return modes[target_ema_mode, scale_mode]


def add_dict_to_argparser(parser: argparse.ArgumentParser, default_dict: Mapping[str, Any]) -> None:
    """A flag for each default, of its type; None stands for a text."""
    for name, value in default_dict.items():
        kind = str2bool if isinstance(value, bool) else str if value is None else type(value)
        parser.add_argument(f"--{name}", default=value, type=kind)


def args_to_dict(args: argparse.Namespace, keys: Iterable[str]) -> dict[str, Any]:
    return {key: getattr(args, key) for key in keys}


def str2bool(v: str | bool) -> bool:
    """The value of a flag that may be given as yes or no, true or false, t or f, y or n, 1 or 0."""
    word = str(v).lower()
    if word in ("yes", "true", "t", "y", "1"):
        return True
    if word in ("no", "false", "f", "n", "0"):
        return False
    raise argparse.ArgumentTypeError(f"expected true or false, not {v!r}")
