"""The benchmark's models: random weights, run by the engine."""

import json
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from common import new_experiment, register_experiment
from mixtral_moe_model import Transformer as MixtralMoE
from mixtral_moe_quantize import WeightOnlyInt8QuantHandler as MixtralMoEWeightOnlyInt8QuantHandler
from model import Transformer as LLaMA
from quantize import WeightOnlyInt8QuantHandler as LLaMAWeightOnlyInt8QuantHandler
from torch import nn

from genwright.dropin.transformer.completion import Task, complete
from genwright.dropin.transformer.model_args import ModelArgs
from genwright.dropin.transformer.modules import ConditionalFeedForward
from genwright.errors import UserError
from genwright.text.architectures.registry import SHAPES, named_shape, read_config
from genwright.text.config import ModelConfig
from genwright.text.llm import LLM

PROMPT = [1, 15043, 29892, 590, 1024, 338]
MODES = {"bfloat16": None, "int8": "int8"}  # quant of the engine


@dataclass
class GPTModelConfig:
    """A model, how its weights are stored, and the figures that are expected of it."""

    name: str
    module: type[Any]
    mode: str | None
    quantizer: type[Any] | None
    token_per_sec: float
    memory_bandwidth: float
    compilation_time: float
    batch_size: int | None = None


def get_arch_name() -> str:
    """The name of the GPU, else of the processor's architecture."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()


def run_experiment(
    x: GPTModelConfig,
    num_samples: int = 5,
    max_new_tokens: int = 200,
    top_k: int = 200,
    temperature: float = 0.8,
    device: str = "cuda",
) -> tuple[float, float, float]:
    """Tokens and gigabytes of weights per second, and the seconds of the first call."""
    if (x.mode or "bfloat16") not in MODES:
        raise UserError(f"The mode must be {' or '.join(MODES)}, not {x.mode}; autoquant needs the package torchao.")
    print(f"Loading model {x.name}")
    started = time.time()
    with _random_llm(x.module.args.from_name(x.name), quant=MODES[x.mode or "bfloat16"], device=device) as llm:
        if x.mode == "int8":
            print("Using int8 weight-only quantization!")
        print(f"Time to load model: {time.time() - started:.02f} seconds")
        size = _activated_bytes(x)
        prompt = [token % llm.model.cfg.vocab_size for token in PROMPT]
        task = Task(prompt, max_new_tokens, temperature=temperature, top_k=top_k)
        times = []
        for number in range(num_samples + 1):
            started = time.perf_counter()
            complete(llm, replace(task, seed=task.seed + number))
            times.append(time.perf_counter() - started)
            if number == 0:
                print(f"Compilation time: {times[0]:.2f} seconds")
    rate = sum(max_new_tokens / each for each in times[1:]) / num_samples
    print(f"Average tokens/sec: {rate:.2f} tokens/sec")
    print(f"Average bandwidth achieved: {size * rate / 1e9:.02f} GB/s")
    print(f"Memory used: {torch.cuda.max_memory_reserved() / 1e9:.02f} GB")
    return rate, size * rate / 1e9, times[0]


@contextmanager
def _random_llm(args: ModelArgs, **settings: Any) -> Iterator[LLM]:
    """A model of this shape with random weights: computed if the shape is a published one, else from a file."""
    if (name := _published(args)) is not None:
        with LLM(f"random:{name},layers={args.n_layer}", dtype="bfloat16", **settings) as llm:
            yield llm
        return
    with torch.device("meta"):
        model = (LLaMA if args.num_experts is None else MixtralMoE)(args)
    state = {name: (0.02 * torch.randn(tensor.shape)).bfloat16() for name, tensor in model.state_dict().items()}
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(args.hugging_face()), encoding="utf-8")
        torch.save(state, path := Path(folder) / "model.pth")
        with LLM(path, dtype="bfloat16", **settings) as llm:
            yield llm


def _published(args: ModelArgs) -> str | None:
    """The engine's name of a shape with any number of layers."""

    def one_layer(config: ModelConfig) -> tuple[ModelConfig, int | None]:
        plain = replace(config, layers=1, windows=(), max_context=0, eos_ids=(), moe=None)
        return plain, None if config.moe is None else config.moe.experts

    wanted = one_layer(args.model_config())
    return next((name for name in SHAPES if one_layer(read_config(named_shape(name), name)) == wanted), None)


def _activated_bytes(x: GPTModelConfig) -> float:
    """Bytes of the weights that a token reads: not the embedding, and of the experts those that are activated."""
    with torch.device("meta"):
        model = x.module.from_name(x.name).to(torch.bfloat16)
    if x.mode == "int8" and x.quantizer is not None:
        model = x.quantizer(model).convert_for_runtime()
    total = sum(_bytes(child) for child in model.children() if not isinstance(child, nn.Embedding))
    experts = sum(_bytes(module) for module in model.modules() if isinstance(module, ConditionalFeedForward))
    if not experts:
        return total
    return total - experts * (1 - model.config.num_activated_experts / model.config.num_experts)


def _bytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in chain(module.parameters(), module.buffers()))


def _run(model: GPTModelConfig, device: str) -> list[Any]:
    found = run_experiment(model, device=device)
    expected = model.token_per_sec, model.memory_bandwidth, model.compilation_time
    metrics = "token_per_sec", "memory_bandwidth(GB/s)", "compilation_time(s)"
    common = {"name": model.name, "dtype": model.mode, "device": device, "arch": get_arch_name(), "is_model": True}
    return [
        new_experiment(metric=metric, target=target, actual=f"{actual:.02f}", **common)
        for metric, target, actual in zip(metrics, expected, found, strict=True)
    ]


# The targets are PyTorch's, for an A100 of 40 GB.
@register_experiment(name="llama2_7b_bf16")
def run_llama2_7b_bf16(device: str = "cuda") -> list[Any]:
    quantizer = LLaMAWeightOnlyInt8QuantHandler
    return _run(GPTModelConfig("Llama-2-7b-chat-hf", LLaMA, "bfloat16", quantizer, 94, 1253, 133), device)


@register_experiment(name="llama2_7b_int8")
def run_llama2_7b_int8(device: str = "cuda") -> list[Any]:
    quantizer = LLaMAWeightOnlyInt8QuantHandler
    return _run(GPTModelConfig("Llama-2-7b-chat-hf", LLaMA, "int8", quantizer, 144, 957, 136), device)


@register_experiment(name="mixtral_8x7b_int8")
def run_mixtral_8x7b_int8(device: str = "cuda") -> list[Any]:
    quantizer = MixtralMoEWeightOnlyInt8QuantHandler
    return _run(GPTModelConfig("Mixtral-8x7B-v0.1", MixtralMoE, "int8", quantizer, 175, 1130, 133), device)
