"""FlexLLMGen's main module: the names that scripts import from it, and its benchmark command."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from flexllmgen.compression import CompressionConfig
from flexllmgen.local_tokenizer import find_tokenizer
from flexllmgen.opt_config import DUMMY_WEIGHT, OptConfig, download_opt_weights, get_opt_config
from flexllmgen.opt_lm import BREAKDOWN, DEBUG_MODES, OptLM, Policy
from flexllmgen.policy_flags import ON, add_policy_flags, make_policy
from flexllmgen.pytorch_backend import DeviceType, TorchDevice, TorchDisk, TorchMixedDevice
from flexllmgen.timer import timers
from flexllmgen.utils import (
    GB,
    ExecutionEnv,
    T,
    project_decode_latency,
    read_benchmark_log,
    str2bool,
    write_benchmark_log,
)

__all__ = [
    "DUMMY_WEIGHT", "GB", "CompressionConfig", "DeviceType", "ExecutionEnv", "OptConfig", "OptLM", "Policy", "T",
    "TorchDevice", "TorchDisk", "TorchMixedDevice", "add_parser_arguments", "download_opt_weights", "get_filename",
    "get_opt_config", "get_test_inputs", "project_decode_latency", "read_benchmark_log", "run_flexllmgen", "str2bool",
    "timers", "write_benchmark_log",
]  # fmt: skip

_WARMUP_LEN = 32


def get_filename(args: argparse.Namespace) -> str:
    """The name of the log file, without its suffix."""
    words = [
        f"fo-{args.model.split('-')[-1]}",
        f"gbs{args.gpu_batch_size}",
        f"ngbs{args.num_gpu_batches}",
        f"prompt{args.prompt_len}",
        f"gen{args.gen_len}",
        "percent",
        *map(str, args.percent),
        "cpu-cache" if args.cpu_cache_compute else "gpu-cache",
        *(["compw"] if args.compress_weight else []),
        *(["compc"] if args.compress_cache else []),
    ]
    return "-".join(words)


def get_test_inputs(prompt_len: int, num_prompts: int, tokenizer: Any) -> tuple[list[int], ...]:
    """FlexLLMGen's test prompt, padded to `prompt_len`, for every prompt of the batch."""
    ids = tokenizer(["Paris is the capital city of"], padding="max_length", max_length=prompt_len).input_ids[0]
    return (ids,) * num_prompts


def run_flexllmgen(args: argparse.Namespace) -> None:
    """Measure prefill and decoding of a batch, print the report and append it to a log file."""
    print(f"<run_flexllmgen>: args.model: {args.model}")
    measure(args, OptLM)


def measure(
    args: argparse.Namespace, kind: Callable[[OptConfig, ExecutionEnv, str, Policy], OptLM], rounds: int = 1
) -> None:
    """The same with a model class, and a batch of `rounds` times the policy's.

    The prompts that are timed are random tokens, all different, because the test prompt is almost all padding, which
    the engine does not compute, and a prefix that prompts share is computed once.
    """
    policy, config = make_policy(args), get_opt_config(args.model)
    if args.debug_mode == BREAKDOWN:
        policy = replace(policy, overlap=False)
    gpu, cpu, disk = TorchDevice("cuda:0"), TorchDevice("cpu"), TorchDisk(args.offload_dir)
    env = ExecutionEnv(gpu, cpu, disk, TorchMixedDevice([gpu, cpu, disk]))
    count, gen_len = args.num_gpu_batches * args.gpu_batch_size * rounds, args.gen_len
    cache_size = config.cache_bytes(count, args.prompt_len + gen_len)
    hidden_size = config.hidden_bytes(count, args.prompt_len + gen_len)
    print(
        f"model size: {config.model_bytes() / GB:.3f} GB, cache size: {cache_size / GB:.3f} GB, "
        f"hidden size (prefill): {hidden_size / GB:.3f} GB"
    )
    print("init weight...")
    model = kind(config, env, args.path, policy)
    draw = np.random.default_rng(0)
    try:
        print("warmup - generate")
        model.generate(draw.integers(4, model.vocab_size, (count, _WARMUP_LEN)), max_new_tokens=1)
        print("benchmark - generate")
        timers("generate").reset()
        model.generate(
            draw.integers(4, model.vocab_size, (count, args.prompt_len)),
            max_new_tokens=gen_len,
            debug_mode=args.debug_mode,
            cut_gen_len=args.cut_gen_len,
            verbose=args.verbose,
        )
        costs = timers("generate").costs
        if args.verbose >= 2 and DUMMY_WEIGHT not in args.path:
            _print_outputs(model, args, count - 1)
        _, peak = gpu.print_stats()
        cpu.print_stats()
    finally:
        env.close_copy_threads()
    prefill, decode = costs[0], project_decode_latency(costs, args.prompt_len, gen_len)
    report = write_benchmark_log(
        _log_file(args),
        config.model_bytes(),
        cache_size,
        hidden_size,
        peak,
        bool(args.debug_mode or args.cut_gen_len),
        prefill,
        count * args.prompt_len / prefill,
        decode,
        count * (gen_len - 1) / max(decode, 1e-10),
        prefill + decode,
        count * gen_len / (prefill + decode),
    )
    if args.verbose >= 1:
        print(report)


def _print_outputs(model: OptLM, args: argparse.Namespace, last: int) -> None:
    """Print the answer to the test prompt as the first and the last of the batch, whose prompts are all the same."""
    tokenizer = find_tokenizer(args.model, args.path)
    ids = model.complete(get_test_inputs(args.prompt_len, 1, tokenizer), args.cut_gen_len or args.gen_len)
    text, line = tokenizer.batch_decode(ids, skip_special_tokens=True)[0], "-" * 70
    print(f"Outputs:\n{line}\n0: {text}\n{line}\n{last}: {text}\n{line}\n")


def _log_file(args: argparse.Namespace) -> str | None:
    if args.no_log:
        return None
    return f"{get_filename(args)}.log" if args.log_file == "auto" else args.log_file


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    add_policy_flags(parser)
    add = parser.add_argument
    add("--prompt-len", type=int, default=512, help="Tokens of a prompt.")
    add("--gen-len", type=int, default=32, help="Tokens of an answer.")
    add("--cut-gen-len", type=int, help="Generate so many tokens and project the rest.")
    add("--debug-mode", choices=DEBUG_MODES, help="Run a few steps and project the rest; breakdown shows their parts.")
    add("--gpu-batch-size", type=int, default=4, help="Sequences that a layer computes at a time.")
    add("--num-gpu-batches", type=int, default=1, help="Batches of that size.")
    add("--sep-layer", help="Move attention and MLP separately.", **ON)
    add("--attn-sparsity", type=float, default=1.0, help="Share of the cached tokens that attention reads.")
    add("--log-file", default="auto", help="File that the report is appended to; auto names it after the flags.")
    add("--no-log", action="store_true", help="Write no log file.")
    add("--verbose", type=int, default=2, help="0: no report; 1: the report; 2: also an answer.")
    add("--overlap", help="Move data while a layer computes.", **ON)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add_parser_arguments(parser)
    run_flexllmgen(parser.parse_args())
