"""gpt-fast's eval module: tasks of lm-evaluation-harness, on modules by its function, on the engine by its command."""

import argparse
import time
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from model import ModelArgs, Transformer
from tokenizer import TokenizerInterface

from genwright.dropin.transformer.checkpoint import open_llm
from genwright.errors import UserError
from genwright.text.llm import LLM

default_checkpoint = Path("checkpoints/meta-llama/Llama-2-7b-chat-hf/lit_model.pth")


def __getattr__(name: str) -> Any:
    """The names that need the package lm-eval are imported when they are asked for."""
    if name not in ("GPTFastEvalWrapper", "setup_cache_padded_seq_input_pos_max_seq_length_for_prefill"):
        raise AttributeError(f"module 'eval' has no attribute {name!r}")
    _need_package()
    return getattr(import_module("eval_wrapper"), name)


def _need_package() -> None:
    if find_spec("lm_eval") is None:
        raise UserError("Tasks need the package lm-eval, and its data sets the network: pip install genwright[eval].")


def eval(
    model: Transformer,
    tokenizer: TokenizerInterface,
    tasks: Sequence[str] = ("hellaswag",),
    limit: int | None = None,
    max_seq_length: int | None = None,
) -> dict[str, Any]:
    """What lm-evaluation-harness finds for modules: `results` has the figures of each task."""
    _need_package()
    from eval_wrapper import GPTFastEvalWrapper

    from genwright.bench.harness import evaluate_model

    found: dict[str, Any] = evaluate_model(GPTFastEvalWrapper(model, tokenizer, max_seq_length), tasks, limit=limit)
    return found


def evaluate(llm: LLM, tasks: list[str], limit: int | None = None) -> dict[str, dict[str, Any]]:
    """The figures of each task, by the engine."""
    _need_package()
    from genwright.bench.harness import run_tasks

    return run_tasks(llm, tasks, None, limit, lambda done, total: None)


def main(
    checkpoint_path: Path = default_checkpoint,
    compile: bool = False,
    tasks: tuple[str, ...] = ("hellaswag",),
    limit: int | None = None,
    max_seq_length: int | None = None,
) -> None:
    """Run tasks and print their figures; `compile` compiles kernels in a call before, which is not timed."""
    print("Loading model ...")
    started = time.time()
    with open_llm(checkpoint_path, ModelArgs, max_context=max_seq_length) as llm:
        print(f"Time to load model: {time.time() - started:.02f} seconds.")
        if compile:
            llm.generate([[1] * 8])
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        started = time.time()
        found = evaluate(llm, list(tasks), limit)
    print(f"Time to run eval: {time.time() - started:.02f} seconds.\nFor model {checkpoint_path}")
    for task, figures in found.items():
        print(f"{task}: {figures}")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Evaluate a model in gpt-fast's format on tasks of lm-eval.")
    add = parser.add_argument
    add("--checkpoint_path", type=Path, default=default_checkpoint, help="The model.pth file.")
    add("--compile", action="store_true", help="Compile kernels and capture CUDA graphs in a first call.")
    add("--tasks", nargs="+", default=["hellaswag"], help="Names of tasks.")
    add("--limit", type=int, default=None, help="Documents of a task, at the most.")
    add("--max_seq_length", type=int, default=None, help="Tokens of a sequence, at the most.")
    return parser


if __name__ == "__main__":
    main(**vars(parser().parse_args()))
