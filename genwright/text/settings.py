"""EngineConfig: how a text model is held and run. LLM, the command line and bench read it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any

from genwright.arguments import check_settings, setting, short
from genwright.errors import UserError


@dataclass(frozen=True)
class EngineConfig:
    """The settings of LLM, each with its flag's help."""

    device: str = setting("auto", "auto, cpu or cuda.")
    dtype: str = setting(
        "auto", "auto, float32, float16 or bfloat16.", choices=("auto", "float32", "float16", "bfloat16")
    )
    quant: str | None = setting(
        None, "Pack weights: int8, int4, int4:g64, int4:g64:asym, fp8, fp8:channel; keep leaves GGUF's as they are."
    )
    kv: str = setting(
        "auto", "The cache's format: auto (the model's own type), int8 or int4.", choices=("auto", "int8", "int4")
    )
    deterministic: bool = setting(False, "The same bits alone, in any batch and under any chunking; slower.")
    max_context: int | None = setting(
        None, "Tokens that a prompt and its answer may have together.", between=(1, 1 << 30)
    )
    arch: str | None = setting(None, "The named shape of a checkpoint that has no configuration.")
    chat_template: str | None = setting(
        None, "Chat not by the checkpoint's template but by llama-2, llama-3, mistral, chatml or a Jinja file."
    )
    draft: str | None = setting(
        None, "What proposes tokens for the model to check: another model, prompt-lookup, mtp, or its copy: self:int4."
    )
    speculate_k: int = setting(5, "Tokens that a draft proposes at the most.", between=(1, 32))
    backend: str = setting(
        "auto",
        "auto, torch (plain PyTorch), cpu (our C++), triton (NVIDIA GPUs) or inductor (torch.compile there).",
        choices=("auto", "torch", "cpu", "triton", "inductor"),
    )
    graph: bool = setting(True, "Use CUDA graphs on a GPU; without them it is slower, and easier to debug.")
    gpu_mem: float | None = setting(None, "GB of GPU memory that may be used.", between=(0.0, 1e6))
    cpu_mem: float | None = setting(None, "GB of memory that may be used.", between=(0.0, 1e6))

    def __post_init__(self) -> None:
        check_settings(self)
        if re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", self.device) is None:
            raise UserError(f"device must be auto, cpu, cuda or cuda:N, not {short(self.device)}.")
        if self.backend == "inductor" and self.deterministic:
            raise UserError("The backend inductor has no deterministic mode; choose triton or torch.")

    def with_settings(self, given: Mapping[str, Any]) -> "EngineConfig":
        """This with other settings, by name."""
        known = [each.name for each in fields(self)]
        for name in given:
            if name not in known:
                close = get_close_matches(name, known, 1)
                hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}."
                raise UserError(f"There is no setting {name}; {hint}")
        return replace(self, **given)
