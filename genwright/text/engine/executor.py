"""Executors: run one step of a model."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch

from genwright.kernels import PAGE
from genwright.kernels.cpu.amx import without_broken_amx
from genwright.text.architectures.deepseek import predict
from genwright.text.cache.layout import Cache, CacheSpec
from genwright.text.cache.tiered import TieredCache
from genwright.text.loader import Model
from genwright.text.ops.protocol import Weights
from genwright.text.ops.step import Chunk, Step, StepBuffers
from genwright.text.ops.torch_ops import TorchOps


class StepExecutor(Protocol):
    """What the engine needs of an executor, wherever the weights are."""

    model: Model
    cache: Cache | TieredCache
    ops: TorchOps

    def run(self, chunks: Sequence[Chunk], known: torch.Tensor | None = None) -> torch.Tensor:
        """Launch a step; `known` has the tokens that the chunks name by `unread`.

        Returns float32 logits [rows, vocab] of the last `chunk.logits` tokens of each chunk (of one token if none are
        wanted), which the next step may overwrite.
        """

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
    ):
        self.model, self.ops, self.mtp = model, ops, mtp
        spec = CacheSpec(model.architecture.cache_layers(model.cfg), model.dtype, cache_bits)
        self.cache: Cache = Cache(spec if mtp is None else spec.with_draft(), pages, model.device)
        self.hidden: torch.Tensor | None = None
        longest, groups = model.max_context // PAGE, len(self.cache.spec.groups)
        self.buffers = StepBuffers(max_tokens, max_batch, longest, model.device, groups, model.rope_tables)

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk], known: torch.Tensor | None = None) -> torch.Tensor:
        return self.forward(self.buffers.fill(chunks, known))

    @torch.inference_mode()
    def forward(self, step: Step) -> torch.Tensor:
        """One forward pass over a step."""
        model, cfg, ops = self.model, self.model.cfg, self.ops
        with amx_guard(model):
            x = model.architecture.embed(ops, cfg, model.outer, step)
            for weights, cache in zip(model.blocks, self.cache.layers[: cfg.layers], strict=True):
                x = model.architecture.block(ops, cfg, weights, cache, x, step)
            if self.mtp is not None:
                self.hidden = ops.norm(x, model.outer, "norm", cfg.norm_eps)
            logits: torch.Tensor = model.architecture.head(ops, cfg, model.outer, x, step)
        return logits.float()

    @torch.inference_mode()
    def predict(
        self, chunks: Sequence[Chunk], hidden: torch.Tensor, known: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.mtp is not None
        step, model = self.buffers.fill(chunks, known), self.model
        with amx_guard(model):
            logits, hidden = predict(self.ops, model.cfg, model.outer, self.mtp, self.cache.layers[-1], hidden, step)
        return logits.float(), hidden[step.logit_rows]

    def close(self) -> None:
        """Nothing is on disk."""


def amx_guard(model: Model) -> AbstractContextManager[None]:
    """Around a step, of which a CPU may compute a part even if the device is a GPU."""
    return nullcontext() if model.dtype == torch.float32 else without_broken_amx()
