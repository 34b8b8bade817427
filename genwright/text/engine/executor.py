"""Executors: run one step of a model."""

from collections.abc import Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from genwright.kernels import PAGE
from genwright.kernels.compile_ahead import dry_run_compiler
from genwright.kernels.cpu.amx import without_broken_amx
from genwright.parallel.pipeline import Pipeline
from genwright.quant.packed import tensors_of
from genwright.text.architectures.deepseek import predict
from genwright.text.cache.layout import Cache, LayerCache
from genwright.text.cache.tiered import TieredCache
from genwright.text.loader import Model
from genwright.text.ops.protocol import Weights
from genwright.text.ops.step import Chunk, Step, StepBuffers
from genwright.text.ops.torch_ops import TorchOps

Int32s = NDArray[np.int32]


@dataclass(frozen=True)
class Verified:
    """Proposed and drawn tokens on the device; the host does not know yet how many of the proposals are accepted."""

    rows: NDArray[np.int64]  # [sequences, 3]: the first row in `drawn`, the first place in `proposed`, and how many
    drawn: torch.Tensor
    proposed: torch.Tensor


class StepExecutor(Protocol):
    """What the engine needs of an executor, wherever the weights are."""

    model: Model
    cache: Cache | TieredCache
    ops: TorchOps

    def run(self, chunks: Sequence[Chunk], known: torch.Tensor | None = None) -> torch.Tensor:
        """Launch a step; `known` has the tokens that the chunks name by `unread`.

        Returns logits [rows, vocab] of the last `chunk.logits` tokens of each chunk (of one token if none are wanted),
        or those of this rank's part of the vocabulary; the next step may overwrite them. They are float32, or of the
        model's type on a GPU, whose sampler reads that.
        """

    def decode(
        self, chunks: Sequence[Chunk], settings: Int32s, counts: Sequence[int], verified: Verified | None = None
    ) -> torch.Tensor | None:
        """Draw `counts` tokens after each chunk, each one from the step that computes the one before it.

        The chunks have the same number of tokens, and pages for all drawn tokens but the last. settings [chunks, words]
        are those of `sampling` for the first token. With `verified`, a chunk has two tokens: the last one before the
        proposals, and the one drawn in place of the first proposal. The device moves both on by the accepted proposals.

        Returns int64 [chunks, most], or None if the host is needed between two tokens.
        """
        return None

    def close(self) -> None:
        """Remove what is on disk; no step may run afterwards."""


class PredictingExecutor(StepExecutor, Protocol):
    """An executor whose model may have a multi-token-prediction layer."""

    mtp: Weights | None
    hidden: torch.Tensor | None  # of the last step, after the final norm: [tokens, dim], for `predict`

    def predict(
        self, chunks: Sequence[Chunk], hidden: torch.Tensor, known: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the multi-token-prediction layer; `hidden` [tokens, dim] is that of the token before each of the chunks'.

        Returns float32 logits [chunks, vocab] and hidden states [chunks, dim] of each chunk's last token.
        """


class ResidentExecutor(PredictingExecutor):
    """Runs embed, blocks and head on one step's tokens, with all weights on one device."""

    def __init__(
        self,
        model: Model,
        ops: TorchOps,
        pages: int,
        max_batch: int,
        max_tokens: int,
        mtp: Weights | None = None,  # the multi-token-prediction layer, if it is the draft
        cache_bits: int | None = None,  # 8 or 4; None keeps the model's dtype
        pipeline: Pipeline | None = None,  # if the model has several stages
    ):
        self.model, self.ops, self.mtp, self.pipeline = model, ops, mtp, pipeline
        spec = replace(model.cache_spec, bits=cache_bits)
        self.cache: Cache = Cache(spec if mtp is None else spec.with_draft(), pages, model.device)
        self.hidden: torch.Tensor | None = None
        longest, groups = model.max_context // PAGE, len(self.cache.spec.groups)
        last_layer = None if mtp is not None else model.cfg.layers - 1  # that draft needs all tokens' hidden states
        self.buffers = StepBuffers(max_tokens, max_batch, longest, model.device, groups, model.rope_tables, last_layer)

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk], known: torch.Tensor | None = None) -> torch.Tensor:
        return self.forward(self.buffers.fill(chunks, known))

    @torch.inference_mode()
    def hidden_states(self, chunk: Chunk) -> torch.Tensor:
        """The final hidden states [chunk.logits, dim] of the chunk's last tokens, in float32."""
        model, step = self.model, self.buffers.fill([chunk])
        with amx_guard(model):
            return model.architecture.final_norm(self.ops, model.cfg, model.outer, self.layers(step)).float()

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        """One forward pass over a step."""
        with amx_guard(self.model):
            return self.head(self.layers(step), step)

    def layers(self, step: Step) -> torch.Tensor:
        """The hidden states after this stage's layers."""
        model, cfg, ops, pipeline = self.model, self.model.cfg, self.ops, self.pipeline
        if pipeline is None or pipeline.is_first:
            x = model.architecture.embed(ops, cfg, model.outer, step)
        else:
            x = pipeline.receive((len(step.tokens), cfg.dim), model.dtype, model.device)
        for weights, cache in self._blocks(step):
            x = model.architecture.block(ops, cfg, weights, cache, x, step)
        return x

    def _blocks(self, step: Step) -> Iterable[tuple[Weights, LayerCache]]:
        """The weights and the cache of each layer; in a dry run, of one layer of each kind."""
        blocks = zip(self.model.blocks, self.cache.layers[: len(self.model.blocks)], strict=True)
        return blocks if dry_run_compiler() is None else {_kind(*block, step): block for block in blocks}.values()

    def head(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """The logits, which the last stage computes from its hidden states."""
        model, cfg, ops, pipeline = self.model, self.model.cfg, self.ops, self.pipeline
        if self.mtp is not None:
            self.hidden = ops.norm(x, model.outer, "norm", cfg.norm_eps)
        if pipeline is None or pipeline.is_last:
            logits: torch.Tensor = model.architecture.head(ops, cfg, model.outer, x, step)
            if pipeline is not None or not ops.capturable:
                logits = logits.float()
        else:
            pipeline.send(x)
            logits = x.new_empty(len(step.logit_rows), model.columns, dtype=torch.float32)
        return logits if pipeline is None else pipeline.share_last(logits)

    @torch.inference_mode()
    def predict(
        self, chunks: Sequence[Chunk], hidden: torch.Tensor, known: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.mtp is not None
        step, model = self.buffers.fill(chunks, known), self.model
        with amx_guard(model):
            logits, hidden = predict(self.ops, model.cfg, model.outer, self.mtp, self.cache.layers[-1], hidden, step)
        return logits.float(), step.wanted(hidden)

    def close(self) -> None:
        """Nothing is on disk."""


def _kind(weights: Weights, cache: LayerCache, step: Step) -> Hashable:
    """Layers of the same kind have the same kernels."""
    parts = [(name, tensor.shape, tensor.dtype) for name in weights for tensor in tensors_of(weights[name])]
    return cache.layer == step.last_layer, cache.spec.layers[cache.layer].window, *parts


def amx_guard(model: Model) -> AbstractContextManager[None]:
    """A context for steps on any device, because the CPU may compute a part of a GPU's step."""
    return nullcontext() if model.dtype == torch.float32 else without_broken_amx()
