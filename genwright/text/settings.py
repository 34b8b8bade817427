"""EngineConfig: the settings of a text model's engine, for LLM, the command line and bench."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from genwright.arguments import check_settings, parse_gigabytes, setting, short
from genwright.errors import UserError
from genwright.parallel.layout import Layout
from genwright.placement.policy import Policy

AUTO = "auto"  # the offload that the planner chooses


@dataclass(frozen=True)
class EngineConfig:
    """The settings of LLM, each with the help text of its flag."""

    device: str = setting("auto", "auto, cpu or cuda.")
    dtype: str = setting(
        "auto", "auto, float32, float16 or bfloat16.", choices=("auto", "float32", "float16", "bfloat16")
    )
    quant: str | None = setting(
        None, "Weight format: int8, int4, int4:g64, int4:g64:asym, fp8, fp8:channel, or keep for that of a GGUF file."
    )
    kv: str = setting(
        "auto",
        "Format of the key-value cache: auto (the model's dtype), int8 or int4.",
        choices=("auto", "int8", "int4"),
    )
    deterministic: bool = setting(False, "Make results independent of the batch and of chunking, bit by bit; slower.")
    exact_inputs: bool = setting(False, "Multiply packed weights by floats on a CPU, not by rounded inputs; slower.")
    fp8_inputs: bool = setting(
        False, "Round the inputs of fp8 weights to fp8 on a Hopper GPU, as DeepSeek does; faster, less exact."
    )
    max_context: int | None = setting(
        None, "Maximum number of tokens of a prompt and its answer together.", between=(1, 1 << 30)
    )
    max_step_tokens: int | None = setting(
        None,
        "Maximum number of tokens that one step computes (512 on a CPU, 2,048 on a GPU); fewer shorten the time "
        "between the tokens of running streams while prompts are read.",
        between=(1, 1 << 16),
    )
    arch: str | None = setting(
        None, "Named shape, or DeepSeek's configuration file, of a checkpoint without config.json."
    )
    chat_template: str | None = setting(
        None, "Chat template instead of the checkpoint's: llama-2, llama-3, mistral, chatml or a Jinja file."
    )
    draft: str | None = setting(
        None, "Draft for speculative decoding: another model, prompt-lookup, mtp, or a copy of the model (self:int4)."
    )
    speculate_k: int = setting(5, "Maximum number of tokens that the draft proposes at a time.", between=(1, 32))
    backend: str = setting(
        "auto",
        "auto, torch (plain PyTorch), cpu (C++ kernels), triton (NVIDIA GPUs) or inductor (torch.compile on them).",
        choices=("auto", "torch", "cpu", "triton", "inductor"),
    )
    tp: int = setting(1, "Tensor parallel: cut every layer over this many ranks.", between=(1, 1024))
    pp: int = setting(1, "Pipeline parallel: divide the layers into this many stages.", between=(1, 1024))
    ep: int = setting(
        1, "Expert parallel: like tp, but each of this many ranks has some experts whole.", between=(1, 1024)
    )
    graph: bool = setting(True, "Use CUDA graphs on a GPU; without them steps are slower but easier to debug.")
    gpu_mem: float | str | None = setting(
        None, "GPU memory to use: 16GiB, 24GB, or a number of GB.", between=(0.0, 1e6)
    )
    cpu_mem: float | str | None = setting(None, "Main memory to use: 64GiB, or a number of GB.", between=(0.0, 1e6))
    offload: str | Policy | None = setting(
        None,
        "Keep a part of the model in CPU memory and on disk: auto, or six percentages (weights on GPU and CPU, cache "
        "on GPU and CPU, activations on GPU and CPU; the rest is on disk), such as 0,100,100,0,100,0,micro_batch=32.",
    )
    offload_dir: str | None = setting(None, "Folder for what is offloaded to disk; default: in the cache folder.")

    def __post_init__(self) -> None:
        for name in ("gpu_mem", "cpu_mem"):
            object.__setattr__(self, name, parse_gigabytes(name, getattr(self, name)))
        if isinstance(self.offload, str) and self.offload != AUTO:
            object.__setattr__(self, "offload", Policy.parse(self.offload))
        check_settings(self)
        if re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", self.device) is None:
            raise UserError(f"device must be auto, cpu, cuda or cuda:N, not {short(self.device)}.")
        if self.backend == "inductor" and self.deterministic:
            raise UserError("The backend inductor has no deterministic mode; choose triton or torch.")
        if self.deterministic and self.policy is not None and (self.policy.cpu_attention or self.policy.sparsity < 1):
            raise UserError(
                "Attention on the CPU and sparse attention have no deterministic mode; choose another policy."
            )
        if self.ep > 1 and self.tp not in (1, self.ep):
            raise UserError(f"ep must be 1 or the same as tp, not {self.ep} with tp={self.tp}.")
        if self.pp > 1 and self.draft == "mtp":
            raise UserError("The draft 'mtp' needs all layers on each rank; choose pp=1 or another draft.")

    @property
    def layout(self) -> Layout:
        """Which part of the model each rank has."""
        return Layout(max(self.tp, self.ep), self.pp, self.ep > 1)

    @property
    def policy(self) -> Policy | None:
        """The placement that was asked for; None if the model is resident or the placement is planned."""
        return self.offload if isinstance(self.offload, Policy) else None

    @property
    def offload_folder(self) -> Path | None:
        """Where what is offloaded to disk is kept; None: in the cache folder."""
        return None if self.offload_dir is None else Path(os.path.expanduser(self.offload_dir))

    def budget(self, kind: str) -> int | None:
        """Bytes of GPU memory (`cuda`) or main memory (`cpu`) to use; None if no limit was set."""
        given = self.cpu_mem if kind == "cpu" else self.gpu_mem
        return None if given is None else int(float(given) * 1e9)

    def as_json(self) -> dict[str, Any]:
        """The settings as the keywords of EngineConfig."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: str(value) if isinstance(value, Policy) else value for name, value in values.items()}

    def with_settings(self, given: Mapping[str, Any]) -> "EngineConfig":
        """A copy with some settings replaced, by name."""
        known = [each.name for each in fields(self)]
        for name in given:
            if name not in known:
                close = get_close_matches(name, known, 1)
                hint = f"did you mean {close[0]}?" if close else f"the settings are {', '.join(known)}."
                raise UserError(f"There is no setting {name}; {hint}")
        return replace(self, **given)
