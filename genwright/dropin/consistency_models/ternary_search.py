"""The original's ternary_search: the time step of multistep sampling between --begin and --end with the lowest FID."""

import argparse

import numpy as np
import torch.distributed as dist

from cm import dist_util, logger
from cm.karras_diffusion import karras_sample
from cm.random_util import get_generator
from cm.script_util import add_dict_to_argparser, model_and_diffusion_defaults, whole_numbers
from evaluations.th_evaluator import FIDAndIS
from genwright.errors import UserError
from genwright.images.sampling.ternary_search import ternary_search
from image_sample import SAMPLE_DEFAULTS, draw_condition, gather, load_model


def main() -> None:
    args = create_argparser().parse_args()
    begin, end = whole_numbers("begin", args.begin), whole_numbers("end", args.end)
    if list(begin + end) != sorted({*begin, *end}) or end[0] - begin[-1] < 2:
        raise UserError(f"There must be room for a time step between --begin {args.begin} and --end {args.end}.")
    if not args.ref_batch:
        raise UserError("A search needs --ref_batch FILE, an .npz of images or of their statistics.")
    dist_util.setup_dist()
    logger.configure()
    model, diffusion = load_model(args)
    fid_is = FIDAndIS()
    fid_is.set_ref_batch(args.ref_batch)
    reference, *_ = fid_is.get_ref_batch(args.ref_batch)

    def features(ts: tuple[int, ...]) -> np.ndarray:
        logger.log("sampling...")
        found: list[np.ndarray] = []
        generator = get_generator(args.generator, args.num_samples, args.seed)
        while len(found) * args.batch_size < args.num_samples:
            sample = karras_sample(
                diffusion,
                model,
                (args.batch_size, 3, args.image_size, args.image_size),
                steps=args.steps,
                clip_denoised=args.clip_denoised,
                model_kwargs=draw_condition(args),
                device=dist_util.dev(),
                sigma_min=args.sigma_min,
                sigma_max=args.sigma_max,
                sampler="multistep",
                generator=generator,
                ts=ts,
            )
            found += gather(fid_is.get_preds(sample)[0])
            logger.log(f"created {len(found) * args.batch_size} samples")
        return np.concatenate(found)[: args.num_samples]

    def fid(point: int) -> float:
        # All ranks have the same features, and so take the same turns.
        found = features((*begin, point, *end))
        distance = reference.frechet_distance(fid_is.get_statistics(found, -1))
        if dist.get_rank() == 0:
            logger.log(f"fid at {point} is {distance}, IS is {fid_is.get_inception_score(found)}")
        return distance

    best = ternary_search(fid, begin[-1], end[0])
    if dist.get_rank() == 0:
        logger.log(f"ternary_search_results: {best}")
    dist.barrier()


def create_argparser() -> argparse.ArgumentParser:
    defaults = SAMPLE_DEFAULTS | {"begin": "0", "end": "39", "ref_batch": ""}
    defaults |= {"training_mode": "consistency_distillation"} | model_and_diffusion_defaults()
    del defaults["ts"]
    parser = argparse.ArgumentParser()
    add_dict_to_argparser(parser, defaults)
    return parser


if __name__ == "__main__":
    main()
