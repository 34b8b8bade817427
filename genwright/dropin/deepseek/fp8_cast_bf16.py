"""DeepSeek's fp8_cast_bf16 command: a Hugging Face folder in FP8 to one in bfloat16."""

import argparse
from pathlib import Path

from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.export.convert import convert

__all__ = ["main", "parser"]


def main(fp8_path: str, bf16_path: str) -> None:
    """Write a new folder with FP8 weights as bfloat16 and all other tensors as they are."""
    convert(open_checkpoint(fp8_path), Path(bf16_path), "bf16", None, lambda done, total: None)
    print(f"Wrote {bf16_path}.")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Dequantize FP8 weights to bfloat16.")
    parser.add_argument("--input-fp8-hf-path", required=True, help="The Hugging Face folder in FP8.")
    parser.add_argument("--output-bf16-hf-path", required=True, help="The new folder.")
    return parser


if __name__ == "__main__":
    given = parser().parse_args()
    main(given.input_fp8_hf_path, given.output_bf16_hf_path)
