"""ResidentRunner: a model whose weights live on one device, run step by step."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from genwright.kernels.cpu.amx import safe_products
from genwright.text.engine.kv import PAGE, Cache
from genwright.text.engine.step import Chunk, StepBuffers
from genwright.text.layers.reference import Reference
from genwright.text.models import Model


class ResidentRunner:
    """Walks embed, blocks and head over one step's tokens."""

    def __init__(self, model: Model, ops: Reference, pages: int, max_batch: int, max_tokens: int):
        self.model, self.ops = model, ops
        self.cache = Cache(model.architecture.cache_spec(model.cfg, model.dtype), pages, model.device)
        longest = min(pages, model.max_context // PAGE)
        self.buffers = StepBuffers(max_tokens, max_batch, longest, model.device)

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Logits [rows, vocab] in float32: of each chunk's last token, or of all where it asks for them."""
        step = self.buffers.fill(chunks)
        model, cfg, ops = self.model, self.model.cfg, self.ops
        with self._safely():
            x = model.architecture.embed(ops, cfg, model.outer, step)
            for weights, cache in zip(model.blocks, self.cache.layers, strict=True):
                x = model.architecture.block(ops, cfg, weights, cache, x, step)
            logits: torch.Tensor = model.architecture.head(ops, cfg, model.outer, x, step)
        return logits.float()

    def _safely(self) -> AbstractContextManager[None]:
        on_cpu, wide = self.model.device.type == "cpu", self.model.dtype == torch.float32
        return safe_products() if on_cpu and not wide else nullcontext()
