"""The flags that FlexLLMGen's commands share, and the policy that they describe."""

import argparse
from collections.abc import Mapping
from typing import Any

from flexllmgen.compression import CompressionConfig
from flexllmgen.opt_config import DUMMY_WEIGHT
from flexllmgen.opt_lm import Policy
from flexllmgen.utils import str2bool
from genwright.errors import UserError

# A flag that is on unless it is given as false.
ON: Mapping[str, Any] = {"type": str2bool, "nargs": "?", "const": True, "default": True}
_GROUPS: Mapping[str, Any] = {"num_bits": 4, "group_size": 64, "symmetric": False}


def add_policy_flags(parser: argparse.ArgumentParser) -> None:
    """The model, and the part of the policy that every command can choose."""
    add = parser.add_argument
    add("--model", default="facebook/opt-6.7b", help="The model's name.")
    add("--path", default="~/opt_weights", help=f"Folder of the models' folders of arrays; {DUMMY_WEIGHT} for none.")
    add("--offload-dir", default="~/flexllmgen_offload_dir", help="Folder for what is on disk.")
    percents = "weights on GPU and CPU, cache on GPU and CPU, activations on GPU and CPU; the rest is on disk."
    add("--percent", nargs="+", type=int, default=[100, 0, 100, 0, 100, 0], help=f"Six percentages: {percents}")
    add("--pin-weight", help="Pin the CPU memory of weights.", **ON)
    add("--cpu-cache-compute", action="store_true", help="Compute attention on the CPU where the cache is there.")
    add("--compress-weight", action="store_true", help="4-bit weights.")
    add("--compress-cache", action="store_true", help="4-bit cache.")


def make_policy(args: argparse.Namespace) -> Policy:
    """The policy of the command line."""
    if len(args.percent) != 6:
        raise UserError(f"--percent needs six numbers, not {len(args.percent)}.")
    weights_gpu, weights_cpu, cache_gpu, cache_cpu, activations_gpu, activations_cpu = args.percent
    return Policy(
        args.gpu_batch_size,
        args.num_gpu_batches,
        weights_gpu,
        weights_cpu,
        cache_gpu,
        cache_cpu,
        activations_gpu,
        activations_cpu,
        args.overlap,
        args.sep_layer,
        args.pin_weight,
        args.cpu_cache_compute,
        args.attn_sparsity,
        args.compress_weight,
        CompressionConfig(group_dim=0, **_GROUPS),
        args.compress_cache,
        CompressionConfig(group_dim=2, **_GROUPS),
    )
