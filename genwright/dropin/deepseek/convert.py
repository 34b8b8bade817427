"""DeepSeek's convert command: a Hugging Face folder to shards for a number of ranks."""

import argparse
from pathlib import Path

from genwright.errors import UserError
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.export.convert import convert

__all__ = ["main", "parser"]


def main(hf_ckpt_path: str, save_path: str, n_experts: int, mp: int) -> None:
    """Write model{rank}-mp{mp}.safetensors without the multi-token-prediction layer, and the tokenizer's files."""
    checkpoint = open_checkpoint(hf_ckpt_path)
    experts = checkpoint.config.moe.experts if checkpoint.config.moe else 0
    if experts != n_experts:
        raise UserError(f"{hf_ckpt_path} has {experts} experts, but --n-experts is {n_experts}.")
    convert(checkpoint, Path(save_path), "deepseek", None, lambda done, total: None, mp, draft=False)
    print(f"Wrote {save_path}.")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Convert a Hugging Face folder to DeepSeek's shards.")
    parser.add_argument("--hf-ckpt-path", required=True, help="The Hugging Face folder.")
    parser.add_argument("--save-path", required=True, help="The new folder.")
    parser.add_argument("--n-experts", type=int, required=True, help="Routed experts of the model.")
    parser.add_argument("--model-parallel", type=int, required=True, help="The number of ranks.")
    return parser


if __name__ == "__main__":
    given = parser().parse_args()
    main(given.hf_ckpt_path, given.save_path, given.n_experts, given.model_parallel)
