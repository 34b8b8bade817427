"""The originals that have a drop-in: their commands, and the modules of ours that run them."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """One original; the folder `dropin/NAME` has its modules under their own names."""

    about: str
    commands: Mapping[str, str]  # the module of each command; the first command is the default
    whole: tuple[str, ...] = ()  # modules that are also scripts of the original, and contain what the drop-in replaces


_FLEXLLMGEN = {
    "flex_opt": "flexllmgen.flex_opt",
    "completion": "flexllmgen.apps.completion",
    "dist_flex_opt": "flexllmgen.dist_flex_opt",
    "opt_config": "flexllmgen.opt_config",
    "profile_bandwidth": "flexllmgen.profile_bandwidth",
    "profile_matmul": "flexllmgen.profile_matmul",
}
_GPT_FAST = {
    "generate": "generate",
    "quantize": "quantize",
    "eval": "eval",
    "convert_hf_checkpoint": "scripts.convert_hf_checkpoint",
    "download": "scripts.download",
}
ORIGINS: Mapping[str, Origin] = {
    "flexllmgen": Origin(
        "FlexLLMGen: OPT models larger than the GPU.",
        _FLEXLLMGEN,
        tuple(module for name, module in _FLEXLLMGEN.items() if name != "completion"),
    ),
    "consistency_models": Origin(
        "consistency_models: few-step image models.",
        {
            **{name: name for name in ("image_sample", "cm_train", "edm_train", "ternary_search")},
            "evaluator": "evaluations.evaluator",
        },
        # These need mpi4py, CLIP or TensorFlow themselves.
        ("ternary_search", "evaluations.evaluator"),
    ),
    "deepseek": Origin(
        "DeepSeek-V3: its models over many GPUs.", {name: name for name in ("generate", "convert", "fp8_cast_bf16")}
    ),
    "gpt_fast": Origin("gpt-fast: Llama and Mixtral models for one user.", _GPT_FAST),
    "torchbench": Origin("PyTorch's benchmarks/gpt_fast: tracked experiments.", {"benchmark": "benchmark"}),
}
