"""Every add_argument of DeepSeek's files, with a value that is not the default and what it gives."""

from typing import Any

FLAGS: dict[str, dict[str, tuple[list[str], Any]]] = {
    "generate": {
        "--ckpt-path": (["folder"], "folder"),
        "--config": (["config.json"], "config.json"),
        "--input-file": (["prompts.txt"], "prompts.txt"),
        "--interactive": ([], True),
        "--max-new-tokens": (["7"], 7),
        "--temperature": (["0.5"], 0.5),
    },
    "convert": {
        "--hf-ckpt-path": (["folder"], "folder"),
        "--save-path": (["target"], "target"),
        "--n-experts": (["256"], 256),
        "--model-parallel": (["16"], 16),
    },
    "fp8_cast_bf16": {
        "--input-fp8-hf-path": (["folder"], "folder"),
        "--output-bf16-hf-path": (["target"], "target"),
    },
}
DEFAULTS = {"--input-file": "", "--interactive": False, "--max-new-tokens": 200, "--temperature": 0.2}
