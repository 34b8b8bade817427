"""gpt-fast's GPTQ handler: int4 weights that are rounded with the inputs of calibration texts in mind."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genwright.dropin.transformer.dense_ops import DenseCache, DenseOps, DenseStep
from genwright.dropin.transformer.int4 import WeightOnlyInt4QuantHandler, tinygemm
from genwright.dropin.transformer.modules import Transformer, TransformerBlock
from genwright.errors import UserError
from genwright.quant.gptq import Block, Observe, Settings, calibrate
from genwright.quant.int4 import Int4
from genwright.text.architectures import llama
from genwright.text.config_file import read_text
from genwright.text.ops.protocol import Weights


class WeightOnlyInt4GPTQQuantHandler(WeightOnlyInt4QuantHandler):
    @torch.no_grad()
    def create_quantized_state_dict(  # type: ignore[override]  # the original's handlers differ too
        self,
        tokenizer: Any,
        blocksize: int,
        percdamp: float,
        groupsize: int,
        calibration_tasks: Sequence[str],
        calibration_limit: int,
        calibration_seq_length: int,
        pad_calibration_inputs: bool,
    ) -> dict[str, Tensor]:
        """A layer at a time: each sees what the layers before it, already quantized, make of the texts."""
        texts = calibration_texts(calibration_tasks)
        rows = calibration_rows(texts, tokenizer, calibration_seq_length, pad_calibration_inputs)[:calibration_limit]
        print(f"Obtained {len(rows)} calibration samples")
        state: dict[str, Tensor] = self.mod.state_dict()
        wanted = {name for name, _ in self.linears()}
        hidden = [self.mod.tok_embeddings(torch.tensor(row)) for row in rows]
        layers = _layers(self.mod, calibration_seq_length, wanted)
        for packed in calibrate(hidden, layers, tinygemm(groupsize), Settings(percdamp, blocksize)):
            for name, matrix in packed.items():
                assert isinstance(matrix, Int4)
                state |= self.tensors(name, matrix)
        return state


def calibration_texts(tasks: Sequence[str]) -> list[str]:
    for task in tasks:
        if not Path(task).is_file():
            raise UserError(
                f"--calibration_tasks {task} is no text file; lm-eval's tasks need its package and the network, so "
                "name text files instead."
            )
    return [read_text(Path(task)) for task in tasks]


def calibration_rows(texts: Sequence[str], tokenizer: Any, length: int, pad: bool) -> list[list[int]]:
    """Rows of `length` token ids; the last of each text is shorter, and is padded or left out."""
    rows = []
    for text in texts:
        ids = [tokenizer.bos_id(), *tokenizer.encode(text)]
        rows += [ids[first : first + length] for first in range(0, len(ids), length)]
    rows = [row + [0] * (length - len(row)) for row in rows if pad or len(row) == length]
    if not rows:
        raise UserError(f"No calibration text has {length} tokens; pass longer texts or --pad_calibration_inputs 1.")
    return rows


def _layers(model: Transformer, length: int, wanted: set[str]) -> Iterator[Block]:
    model.setup_caches(1, length)
    for number, block in enumerate(model.layers):
        assert isinstance(block, TransformerBlock)
        yield _Layer(model, deepcopy(block), f"layers.{number}", length, wanted)
    yield _Head(model, wanted)


class _Layer(Block):
    def __init__(self, model: Transformer, block: TransformerBlock, name: str, length: int, wanted: set[str]):
        assert model.freqs_cis is not None and block.attention.kv_cache is not None
        self.block, positions = block, torch.arange(length)
        kept = block.attention.kv_cache
        self.cache: Any = DenseCache(block.layer, kept.k_cache, kept.v_cache)
        self.step: Any = DenseStep(positions, 1, positions, model.freqs_cis[positions], model.causal(positions))
        modules = {
            "qkv": ("attention.wqkv",),
            "out": ("attention.wo",),
            "gate": ("feed_forward.w1", "feed_forward.w3"),
            "down": ("feed_forward.w2",),
        }
        self.matrices = {
            observed: {
                f"{name}.{each}": block.get_parameter(f"{each}.weight").data
                for each in names
                if f"{name}.{each}" in wanted
            }
            for observed, names in modules.items()
        }

    def run(self, x: Tensor, observe: Observe | None = None) -> Tensor:
        ops = DenseOps() if observe is None else _Observing(observe)
        return llama.block(ops, self.block.model_config, self.block.weights(), self.cache, x, self.step)


class _Head(Block):
    def __init__(self, model: Transformer, wanted: set[str]):
        self.norm = model.norm
        weight = model.output.weight.detach().clone()
        self.matrices = {"head": {"output": weight} if "output" in wanted else {}}

    def run(self, x: Tensor, observe: Observe | None = None) -> Tensor:
        if observe is not None:
            observe("head", self.norm(x))
        return x


class _Observing(DenseOps):
    """Passes the inputs of each matrix to `observe`."""

    def __init__(self, observe: Observe):
        super().__init__()
        self.observe = observe

    def linear(self, x: Tensor, weights: Weights, name: str) -> Tensor:
        if name != "up":  # which has the inputs of gate
            self.observe(name, x)
        return super().linear(x, weights, name)

    def add_linear(
        self, residual: Tensor, x: Tensor, weights: Weights, name: str, post_norm: str = "", eps: float = 0
    ) -> Tensor:
        self.observe(name, x)
        return super().add_linear(residual, x, weights, name, post_norm, eps)
