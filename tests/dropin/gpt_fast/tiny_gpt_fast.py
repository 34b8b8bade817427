"""Tiny checkpoints in gpt-fast's format, with a tokenizer, and the runs of scripts on them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import sentencepiece
import torch

ROOT = Path(__file__).parents[3]
VOCAB = 400
_TINY = {"block_size": 256, "n_head": 4, "n_local_heads": 2, "dim": 64, "vocab_size": VOCAB}
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {**_TINY, "n_layer": 2},
    "tiny-draft": {**_TINY, "n_layer": 1},
    "tiny-moe": {**_TINY, "n_layer": 2, "intermediate_size": 128, "num_experts": 8, "num_activated_experts": 2},
}
GREEDY = ("--device", "cpu", "--num_samples", "1", "--max_new_tokens", "12", "--temperature", "0")


def random_state(model: Any) -> dict[str, torch.Tensor]:
    """Weights with which the likeliest tokens after `Hello, my name is` stand out by more than rounding can change."""
    torch.manual_seed(14 if model.config.num_experts is None else 23)
    scales = {"tok_embeddings.weight": 2.0, "output.weight": 0.2}
    state = {
        name: scales.get(name, 0.1) * torch.randn(tensor.shape) + ("norm" in name)
        for name, tensor in model.state_dict().items()
    }
    state["output.weight"] += 0.05 * state["tok_embeddings.weight"].roll(7, 0)
    return {name: tensor.bfloat16() for name, tensor in state.items()}


def write_checkpoints(folder: Path) -> None:
    """A folder for each shape; the originals need no config.json, and our commands know published names alone."""
    from model import Transformer, transformer_configs

    transformer_configs.update(SHAPES)
    text = (ROOT / "LICENSE").read_text().splitlines()
    for name in SHAPES:
        target = folder / name
        target.mkdir()
        with torch.device("meta"):
            model = Transformer.from_name(name)
        torch.save(random_state(model), target / "model.pth")
        (target / "config.json").write_text(json.dumps(model.config.hugging_face()))
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text), model_prefix=str(target / "tokenizer"), vocab_size=VOCAB, minloglevel=2
        )


def run(command: list[str | Path], cwd: Path, path: Path = ROOT, **environment: str) -> str:
    """The output of a command."""
    shapes = json.dumps({"model": SHAPES})
    env = {**os.environ, "PYTHONPATH": str(path), "TINY_SHAPES": shapes, "OMP_NUM_THREADS": "1", **environment}
    words = [sys.executable, *map(str, command)]
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def answer(output: str) -> str:
    """The generated text of the first sample."""
    found = re.search(r"(Hello, my name is.*)\nTime for inference 1", output, re.DOTALL)
    assert found is not None, output
    return found[1]
