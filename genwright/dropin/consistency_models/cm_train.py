"""The original's cm_train: train a consistency model, with or without a teacher, or distill progressively."""

import argparse
from typing import Any

from cm import dist_util, logger
from cm.cm_train_loop import MODES
from cm.script_util import (
    add_dict_to_argparser,
    args_to_dict,
    cm_train_defaults,
    create_ema_and_scales_fn,
    create_model_and_diffusion,
    model_and_diffusion_defaults,
)
from cm.train_util import CMTrainLoop
from edm_train import TRAIN_DEFAULTS, loop_arguments
from genwright.arguments import one_of


def main() -> None:
    args = create_argparser().parse_args()
    dist_util.setup_dist()
    logger.configure()
    logger.log("creating model and diffusion...")
    ema_scale_fn = create_ema_and_scales_fn(
        target_ema_mode=args.target_ema_mode,
        start_ema=args.start_ema,
        scale_mode=args.scale_mode,
        start_scales=args.start_scales,
        end_scales=args.end_scales,
        total_steps=args.total_training_steps,
        distill_steps_per_iter=args.distill_steps_per_iter,
    )
    shape = args_to_dict(args, model_and_diffusion_defaults())
    shape["distillation"] = one_of("--training_mode", args.training_mode, MODES) != "progdist"
    model, diffusion = create_model_and_diffusion(**shape)
    model.to(dist_util.dev()).train()
    loop = loop_arguments(args, diffusion)

    teacher: Any = None
    teacher_diffusion: Any = None
    if args.teacher_model_path:
        logger.log(f"loading the teacher model from {args.teacher_model_path}")
        teacher, teacher_diffusion = create_model_and_diffusion(
            **shape | {"dropout": args.teacher_dropout, "distillation": False}
        )
        teacher.load_state_dict(dist_util.load_state_dict(args.teacher_model_path))
        model.load_state_dict(teacher.state_dict())
        teacher.to(dist_util.dev()).eval()
    logger.log("creating the target model")
    target, _ = create_model_and_diffusion(**shape)
    target.load_state_dict(model.state_dict())
    target.to(dist_util.dev()).train()
    if args.use_fp16:
        for network in (model, teacher, target):
            if network is not None:
                network.convert_to_fp16()

    logger.log("training...")
    CMTrainLoop(
        model=model,
        target_model=target,
        teacher_model=teacher,
        teacher_diffusion=teacher_diffusion,
        training_mode=args.training_mode,
        ema_scale_fn=ema_scale_fn,
        total_training_steps=args.total_training_steps,
        diffusion=diffusion,
        **loop,
    ).run_loop()


def create_argparser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_dict_to_argparser(parser, TRAIN_DEFAULTS | model_and_diffusion_defaults() | cm_train_defaults())
    return parser


if __name__ == "__main__":
    main()
