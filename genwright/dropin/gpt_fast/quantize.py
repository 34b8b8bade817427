"""gpt-fast's quantize module: int8, int4 and GPTQ handlers, and the command that writes quantized files."""

import argparse
import time
from pathlib import Path

import torch
from model import Transformer
from tokenizer import get_tokenizer

from genwright.dropin.transformer.checkpoint import load_modules, read_state, save_state, weight_format
from genwright.dropin.transformer.gptq import WeightOnlyInt4GPTQQuantHandler
from genwright.dropin.transformer.int4 import WeightOnlyInt4Linear, WeightOnlyInt4QuantHandler
from genwright.dropin.transformer.int8 import (
    ConditionalFeedForwardInt8,
    WeightOnlyInt8Linear,
    WeightOnlyInt8QuantHandler,
    dynamically_quantize_per_channel,
)
from genwright.errors import UserError

__all__ = [
    "ConditionalFeedForwardBit8", "WeightOnlyBit8Linear", "WeightOnlyBit8QuantHandler",
    "WeightOnlyInt4GPTQQuantHandler", "WeightOnlyInt4Linear", "WeightOnlyInt4QuantHandler", "WeightOnlyInt8Linear",
    "WeightOnlyInt8QuantHandler", "dynamically_quantize_per_channel", "quantize",
]  # fmt: skip

# The names in the folder mixtral-moe.
WeightOnlyBit8QuantHandler, WeightOnlyBit8Linear = WeightOnlyInt8QuantHandler, WeightOnlyInt8Linear
ConditionalFeedForwardBit8 = ConditionalFeedForwardInt8

MODES = {
    "int8": "int8 weight-only symmetric per-channel quantization",
    "int4": "int4 weight-only affine per-channel groupwise quantization",
    "int4-gptq": "int4 weight-only affine per-channel groupwise quantization using GPTQ...",
}
default_checkpoint = Path("checkpoints/meta-llama/Llama-2-7b-chat-hf/model.pth")


def quantize(
    checkpoint_path: Path = default_checkpoint,
    mode: str = "int8",
    groupsize: int = 128,
    calibration_tasks: tuple[str, ...] = ("hellaswag",),
    calibration_limit: int = 1000,
    calibration_seq_length: int = 100,
    pad_calibration_inputs: bool = False,
    percdamp: float = 0.01,
    blocksize: int = 128,
    label: str = "",
) -> None:
    """Write a quantized copy beside a model.pth, named by the label and the mode."""
    if mode not in MODES:
        raise UserError(f"The mode must be one of {', '.join(MODES)}, not {mode!r}.")
    print("Loading model ...")
    started = time.time()
    if (found := weight_format(read_state(checkpoint_path))) is not None:
        raise UserError(f"{checkpoint_path} is {found} already; quantize the file that it was made from.")
    model = load_modules(checkpoint_path, Transformer, "cpu", torch.bfloat16)
    suffix = "int8" if mode == "int8" else f"{mode}.g{groupsize}"
    print(f"Quantizing model weights for {MODES[mode]}")
    if mode == "int8":
        state = WeightOnlyInt8QuantHandler(model).create_quantized_state_dict()
    elif mode == "int4":
        state = WeightOnlyInt4QuantHandler(model, groupsize).create_quantized_state_dict()
    else:
        state = WeightOnlyInt4GPTQQuantHandler(model, groupsize).create_quantized_state_dict(
            get_tokenizer(checkpoint_path.parent / "tokenizer.model", checkpoint_path),
            blocksize,
            percdamp,
            groupsize,
            calibration_tasks,
            calibration_limit,
            calibration_seq_length,
            pad_calibration_inputs,
        )
    target = checkpoint_path.with_name(checkpoint_path.name.replace(".pth", f"{label}{suffix}.pth"))
    print(f"Writing quantized weights to {target}")
    save_state(state, target)
    print(f"Quantization complete took {time.time() - started:.02f} seconds")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Quantize a model in gpt-fast's format.")
    add = parser.add_argument
    add("--checkpoint_path", type=Path, default=default_checkpoint, help="The model.pth file.")
    add("--mode", "-q", default="int8", choices=MODES, help="The weight format; int4-gptq calibrates.")
    add("--groupsize", type=int, default=32, help="Columns of an int4 group: 32, 64, 128 or 256.")
    add("--calibration_tasks", nargs="+", default=["wikitext"], help="Text files, or tasks of lm-eval, for GPTQ.")
    add("--calibration_limit", type=int, default=1000, help="Samples to calibrate with, at the most.")
    add("--calibration_seq_length", type=int, default=100, help="Tokens of a sample.")
    add("--pad_calibration_inputs", type=bool, default=False, help="Also use shorter samples, filled up with zeros.")
    add("--percdamp", type=float, default=0.01, help="GPTQ's damping, as a share of the mean diagonal.")
    add("--blocksize", type=int, default=128, help="Columns that GPTQ corrects together.")
    add("--label", default="_", help="Put between the file's name and the format.")
    return parser


if __name__ == "__main__":
    quantize(**vars(parser().parse_args()))
