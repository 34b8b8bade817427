"""The original's image_sample: sample a model, and write samples_NxHxWx3.npz into the log's folder."""

import argparse
import os
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from cm import dist_util, logger
from cm.karras_diffusion import KarrasDenoiser, karras_sample
from cm.random_util import get_generator
from cm.script_util import (
    NUM_CLASSES,
    add_dict_to_argparser,
    args_to_dict,
    create_model_and_diffusion,
    model_and_diffusion_defaults,
    whole_numbers,
)
from cm.unet import UNetModel

SAMPLE_DEFAULTS: dict[str, Any] = {
    "training_mode": "edm",
    "generator": "determ",
    "clip_denoised": True,
    "num_samples": 10_000,
    "batch_size": 16,
    "sampler": "heun",
    "s_churn": 0.0,
    "s_tmin": 0.0,
    "s_tmax": float("inf"),
    "s_noise": 1.0,
    "steps": 40,
    "model_path": "",
    "seed": 42,
    "ts": "",
}


def main() -> None:
    args = create_argparser().parse_args()
    ts = whole_numbers("ts", args.ts) if args.sampler == "multistep" else None
    dist_util.setup_dist()
    logger.configure()
    model, diffusion = load_model(args)
    logger.log("sampling...")
    generator = get_generator(args.generator, args.num_samples, args.seed)
    images: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    while len(images) * args.batch_size < args.num_samples:
        condition = draw_condition(args)
        sample = karras_sample(
            diffusion,
            model,
            (args.batch_size, 3, args.image_size, args.image_size),
            steps=args.steps,
            model_kwargs=condition,
            device=dist_util.dev(),
            clip_denoised=args.clip_denoised,
            sampler=args.sampler,
            sigma_min=args.sigma_min,
            sigma_max=args.sigma_max,
            s_churn=args.s_churn,
            s_tmin=args.s_tmin,
            s_tmax=args.s_tmax,
            s_noise=args.s_noise,
            generator=generator,
            ts=ts,
        )
        images += gather(((sample + 1) * 127.5).clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1))
        labels += gather(condition["y"]) if condition else []
        logger.log(f"created {len(images) * args.batch_size} samples")
    arrays = [np.concatenate(parts)[: args.num_samples] for parts in (images, labels) if parts]
    if dist.get_rank() == 0:
        path = os.path.join(logger.get_dir(), f"samples_{'x'.join(map(str, arrays[0].shape))}.npz")
        logger.log(f"saving to {path}")
        np.savez(path, *arrays)
    dist.barrier()
    logger.log("sampling complete")


def load_model(args: argparse.Namespace) -> tuple[UNetModel, KarrasDenoiser]:
    """The model of --model_path, ready to sample."""
    logger.log("creating model and diffusion...")
    model, diffusion = create_model_and_diffusion(
        **args_to_dict(args, model_and_diffusion_defaults()), distillation="consistency" in args.training_mode
    )
    model.load_state_dict(dist_util.load_state_dict(args.model_path))
    model.to(dist_util.dev())
    if args.use_fp16:
        model.convert_to_fp16()
    return model.eval(), diffusion


def draw_condition(args: argparse.Namespace) -> dict[str, Tensor]:
    """Labels of a batch, drawn with torch's global generator, if the model has classes."""
    if not args.class_cond:
        return {}
    return {"y": torch.randint(NUM_CLASSES, (args.batch_size,), device=dist_util.dev())}


def gather(tensor: Tensor) -> list[np.ndarray]:
    """The tensors of all ranks, in their order."""
    whole = tensor.contiguous()
    parts = [torch.empty_like(whole) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, whole)
    return [part.cpu().numpy() for part in parts]


def create_argparser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_dict_to_argparser(parser, SAMPLE_DEFAULTS | model_and_diffusion_defaults())
    return parser


if __name__ == "__main__":
    main()
