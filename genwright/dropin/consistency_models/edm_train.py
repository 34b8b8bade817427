"""The original's edm_train: train a diffusion model on a folder of images."""

import argparse
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor

from cm import dist_util, logger
from cm.image_datasets import load_data
from cm.resample import create_named_schedule_sampler
from cm.script_util import (
    add_dict_to_argparser,
    args_to_dict,
    create_model_and_diffusion,
    model_and_diffusion_defaults,
)
from cm.train_util import TrainLoop

# The flags of the training scripts that are not the model's.
TRAIN_DEFAULTS = {
    "data_dir": "",
    "schedule_sampler": "uniform",
    "lr": 1e-4,
    "weight_decay": 0.0,
    "lr_anneal_steps": 0,
    "global_batch_size": 2048,
    "batch_size": -1,
    "microbatch": -1,
    "ema_rate": "0.9999",
    "log_interval": 10,
    "save_interval": 10_000,
    "resume_checkpoint": "",
    "use_fp16": False,
    "fp16_scale_growth": 1e-3,
}
_LOOP = (
    "microbatch", "lr", "ema_rate", "log_interval", "save_interval", "resume_checkpoint", "use_fp16",
    "fp16_scale_growth", "weight_decay", "lr_anneal_steps",
)  # fmt: skip


def main() -> None:
    args = create_argparser().parse_args()
    dist_util.setup_dist()
    logger.configure()
    logger.log("creating model and diffusion...")
    model, diffusion = create_model_and_diffusion(**args_to_dict(args, model_and_diffusion_defaults()))
    model.to(dist_util.dev())
    loop = loop_arguments(args, diffusion)
    logger.log("training...")
    TrainLoop(model=model, diffusion=diffusion, **loop).run_loop()


def loop_arguments(args: argparse.Namespace, diffusion: Any) -> dict[str, Any]:
    """The arguments of TrainLoop that flags give, and the data."""
    logger.log("creating data loader...")
    batch_size = args.batch_size
    if batch_size == -1:
        batch_size, rest = divmod(args.global_batch_size, dist.get_world_size())
        if rest:
            whole = batch_size * dist.get_world_size()
            logger.log(f"warning, using smaller global_batch_size of {whole} instead of {args.global_batch_size}")
    data: Iterator[tuple[Tensor, dict[str, Tensor]]] = load_data(
        data_dir=args.data_dir, batch_size=batch_size, image_size=args.image_size, class_cond=args.class_cond
    )
    sampler = create_named_schedule_sampler(args.schedule_sampler, diffusion)
    return {"data": data, "batch_size": batch_size, "schedule_sampler": sampler} | args_to_dict(args, _LOOP)


def create_argparser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_dict_to_argparser(parser, TRAIN_DEFAULTS | model_and_diffusion_defaults())
    return parser


if __name__ == "__main__":
    main()
