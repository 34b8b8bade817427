"""StreamedExecutor: runs a step block by block over all its micro-batches, with weights from any tier."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from genwright.kernels import PAGE
from genwright.placement.policy import Policy
from genwright.placement.tiers import Tiers
from genwright.placement.weight_stream import WeightStream
from genwright.placement.weights import PlacedBlock
from genwright.text.architectures.deepseek import predict
from genwright.text.engine.executor import ResidentExecutor
from genwright.text.loader import Model
from genwright.text.ops.protocol import Weights
from genwright.text.ops.step import Chunk, Step, StepBuffers
from genwright.text.ops.torch_ops import TorchOps

MICRO_BATCH_TOKENS = {"cpu": 512, "cuda": 4096}  # more gain no speed and need memory


@dataclass
class MicroBatch:
    """Sequences that a block computes together."""

    chunks: list[Chunk]
    step: Step
    wanted: bool  # whether some of their logits are


class StreamedExecutor(ResidentExecutor):
    """The model's blocks are in the tiers of a policy; all else is on the device."""

    def __init__(
        self,
        model: Model,  # its blocks are PlacedBlocks
        ops: TorchOps,
        pages: int,
        max_batch: int,
        max_tokens: int,
        policy: Policy,
        tiers: Tiers,
        mtp: Weights | None = None,
        cache_bits: int | None = None,
    ):
        micro_tokens = min(max_tokens, MICRO_BATCH_TOKENS[model.device.type])
        super().__init__(
            model, ops, pages, min(max_batch, policy.micro_batch or max_batch), micro_tokens, mtp, cache_bits
        )
        self.policy, self.tiers = policy, tiers
        blocks = [block for block in model.blocks if isinstance(block, PlacedBlock)]
        self._weights = WeightStream(blocks, tiers, policy.overlap)
        self._micro_tokens = micro_tokens
        self._buffers = [self.buffers]  # of each micro-batch of a step

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk], known: Tensor | None = None) -> Tensor:
        batches = list(self._micro_batches(chunks, known))
        if not any(batch.wanted for batch in batches):
            batches[-1].wanted = True
        model, cfg, ops = self.model, self.model.cfg, self.ops
        with self._amx_guard():
            states = [model.architecture.embed(ops, cfg, model.outer, batch.step) for batch in batches]
            for layer in range(cfg.layers):
                weights = self._weights.take(layer)
                for i, batch in enumerate(batches):
                    states[i] = self._block(layer, weights, states[i], batch)
                self._weights.release(layer)
            if self.mtp is not None:
                self.hidden = torch.cat([ops.norm(x, model.outer, "norm", cfg.norm_eps) for x in states])
            logits = [
                model.architecture.head(ops, cfg, model.outer, x, batch.step).float()
                for x, batch in zip(states, batches, strict=True)
                if batch.wanted
            ]
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def _block(self, layer: int, weights: Weights, x: Tensor, batch: MicroBatch) -> Tensor:
        """One block of one micro-batch: the only place where a layer's cache is used."""
        model = self.model
        return model.architecture.block(self.ops, model.cfg, weights, self.cache.layers[layer], x, batch.step)

    @torch.inference_mode()
    def predict(self, chunks: Sequence[Chunk], hidden: Tensor, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
        assert self.mtp is not None
        model, cache, first = self.model, self.cache.layers[-1], 0
        logits, states = list[Tensor](), list[Tensor]()
        with self._amx_guard():
            for batch in self._micro_batches(chunks, known):
                rows = hidden[first : first + len(batch.step.tokens)]
                first += len(rows)
                found, new = predict(self.ops, model.cfg, model.outer, self.mtp, cache, rows, batch.step)
                if batch.wanted:
                    logits.append(found.float())
                    states.append(new[batch.step.logit_rows])
        return torch.cat(logits), torch.cat(states)

    def _micro_batches(self, chunks: Sequence[Chunk], known: Tensor | None) -> Iterator[MicroBatch]:
        """A step's chunks in micro-batches, each with buffers of its own."""
        for index, some in enumerate(split(chunks, self.buffers.most_sequences, self._micro_tokens)):
            if index == len(self._buffers):
                model, groups = self.model, len(self.cache.spec.groups)
                sizes = self._micro_tokens, self.buffers.most_sequences, model.max_context // PAGE
                self._buffers.append(StepBuffers(*sizes, model.device, groups, model.rope_tables))
            step = self._buffers[index].fill(some, known)
            yield MicroBatch(some, step, any(chunk.logits for chunk in some))


def split(chunks: Sequence[Chunk], sequences: int, tokens: int) -> Iterator[list[Chunk]]:
    """Chunks in groups of at most so many sequences and tokens; a longer chunk is cut."""
    group, room = list[Chunk](), tokens
    for chunk in chunks:
        done, count = 0, len(chunk.tokens)
        while done < count:
            taken = min(count - done, room)
            left = count - done - taken
            piece = chunk.tokens[done : done + taken]
            logits = max(0, min(taken, chunk.logits - left))
            group.append(Chunk(piece, chunk.start + done, chunk.tables, logits))
            done, room = done + taken, room - taken
            if not room or len(group) == sequences:
                yield group
                group, room = [], tokens
    if group:
        yield group
