"""StreamedExecutor: runs a step block by block over all its micro-batches, with weights from any tier."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from genwright.kernels import PAGE
from genwright.parallel.pipeline import Pipeline
from genwright.placement.activations import PlacedActivations
from genwright.placement.footprint import MICRO_BATCH_TOKENS
from genwright.placement.policy import Policy
from genwright.placement.tiers import DECODING, PREFILL, Tiers
from genwright.placement.weight_stream import WeightStream
from genwright.placement.weights import PlacedBlock
from genwright.text.architectures.deepseek import predict
from genwright.text.cache.tiered import TieredCache
from genwright.text.engine.executor import PredictingExecutor, amx_guard
from genwright.text.engine.placed_cache import CachePlacement, PlacedBatch
from genwright.text.loader import Model
from genwright.text.ops.cpu_ops import CpuOps
from genwright.text.ops.placed_ops import PlacedOps
from genwright.text.ops.protocol import Ops, Weights
from genwright.text.ops.step import Chunk, Step, StepBuffers
from genwright.text.ops.torch_ops import TorchOps

MOST_CHOSEN = 0.9  # share of the experts above which all are brought ahead


@dataclass
class MicroBatch:
    """Sequences that a block computes together."""

    placed: PlacedBatch
    wanted: bool  # whether some of their logits are

    @property
    def step(self) -> Step:
        return self.placed.step


class StreamedExecutor(PredictingExecutor):
    """The model's blocks and caches are in the tiers of a policy; all else is on the device."""

    def __init__(
        self,
        model: Model,  # its blocks are PlacedBlocks
        ops: TorchOps,
        pages: Sequence[int],  # of the cache in each tier
        max_batch: int,
        max_tokens: int,
        policy: Policy,
        tiers: Tiers,
        mtp: Weights | None = None,
        cache_bits: int | None = None,
        pipeline: Pipeline | None = None,
    ):
        micro_tokens = micro_batch_tokens(policy, max_tokens, model.device)
        self.model, self.ops, self.mtp = model, ops, mtp
        self.hidden: Tensor | None = None
        self.policy, self.tiers, self.pipeline = policy, tiers, pipeline
        self._layers = model.cache_spec.own or range(model.cfg.layers)
        self._sequences = min(max_batch, policy.micro_batch or max_batch)  # of a micro-batch
        spec = replace(model.cache_spec, bits=cache_bits)
        spec = spec if mtp is None else spec.with_draft()
        self.cache = TieredCache(spec, pages, policy.shares("cache"), tiers, sparse=policy.sparsity < 1)
        sizes = micro_tokens, self._sequences, model.max_context // PAGE
        groups, tables = len(self.cache.spec.groups), model.rope_tables

        def new_buffers(device: torch.device) -> StepBuffers:  # not a method, so that closing frees the memory at once
            return StepBuffers(*sizes, device, groups, tables)

        self._caches = CachePlacement(self.cache, policy, new_buffers)
        self._placed_ops = cast(Ops, PlacedOps(ops, CpuOps(ops.deterministic)))
        blocks = [block for block in model.blocks if isinstance(block, PlacedBlock)]
        self._weights = WeightStream(blocks, tiers, policy.overlap)
        row_bytes = model.cfg.dim * model.dtype.itemsize
        batches = max_batch + max_tokens // micro_tokens + 1  # a micro-batch ends with its sequences or its tokens
        self._activations = PlacedActivations(policy, tiers, row_bytes, micro_tokens, max_tokens, batches)
        self._micro_tokens = micro_tokens

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk], known: Tensor | None = None) -> Tensor:
        batches = list(self._micro_batches(chunks, known))
        if not any(batch.wanted for batch in batches):
            batches[-1].wanted = True
        model, cfg, ops = self.model, self.model.cfg, self.ops
        self.tiers.stage = PREFILL if any(len(chunk.tokens) > 1 for chunk in chunks) else DECODING
        self._weights.begin(self._experts_by_choice(sum(len(chunk.tokens) for chunk in chunks)))
        self._caches.begin(self._layers, [batch.placed for batch in batches])
        self._activations.begin([len(batch.step.tokens) for batch in batches])
        with amx_guard(model):
            for i, batch in enumerate(batches):
                self._activations.put(i, self._first(batch.step))
            for index, layer in enumerate(self._layers):
                weights = self._weights.take(index)
                for i, batch in enumerate(batches):
                    x = self._activations.get(i)
                    self._activations.ask((i + 1) % len(batches))
                    self._activations.put(i, self._block(layer, weights, x, batch))
                self._weights.release(index)
            states = [self._activations.get(i) for i in range(len(batches))]
            if self.mtp is not None:
                self.hidden = torch.cat([ops.norm(x, model.outer, "norm", cfg.norm_eps) for x in states])
            logits = self._last(states, batches)
        self._caches.finish()
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def _first(self, step: Step) -> Tensor:
        """The hidden states before this rank's blocks."""
        model, pipeline = self.model, self.pipeline
        if pipeline is None or pipeline.is_first:
            return model.architecture.embed(self.ops, model.cfg, model.outer, step)
        return pipeline.receive((len(step.tokens), model.cfg.dim), model.dtype, model.device)

    def _last(self, states: Sequence[Tensor], batches: Sequence[MicroBatch]) -> list[Tensor]:
        """The logits of the micro-batches that want them; a stage sends all states on before it waits for logits."""
        model, pipeline = self.model, self.pipeline
        if pipeline is not None and not pipeline.is_last:
            for x in states:
                pipeline.send(x)
            rows = [len(batch.step.logit_rows) for batch in batches if batch.wanted]
            empty = [states[0].new_empty(count, model.columns, dtype=torch.float32) for count in rows]
            return [pipeline.share_last(each) for each in empty]
        wanted = [(x, batch.step) for x, batch in zip(states, batches, strict=True) if batch.wanted]
        logits = [model.architecture.head(self.ops, model.cfg, model.outer, x, step).float() for x, step in wanted]
        return logits if pipeline is None else [pipeline.share_last(each) for each in logits]

    def _experts_by_choice(self, tokens: int) -> bool:
        """Whether so many tokens are expected to choose few enough experts that waiting for their choice pays."""
        moe = self.model.cfg.moe
        return moe is not None and 1 - (1 - moe.top_k / moe.experts) ** tokens < MOST_CHOSEN

    def close(self) -> None:
        self._caches.close()
        self._weights.close()
        self._activations.close()
        self.tiers.close()

    def _block(self, layer: int, weights: Weights, x: Tensor, batch: MicroBatch) -> Tensor:
        """One block of one micro-batch: the only place where a layer's cache is used."""
        model = self.model
        with self._caches.layer(layer, batch.placed) as cache:
            return model.architecture.block(self._placed_ops, model.cfg, weights, cache, x, batch.step)

    @torch.inference_mode()
    def predict(self, chunks: Sequence[Chunk], hidden: Tensor, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
        assert self.mtp is not None
        model, layer, first = self.model, self.model.cfg.layers, 0
        logits, states = list[Tensor](), list[Tensor]()
        batches = list(self._micro_batches(chunks, known))
        self._caches.begin([layer], [batch.placed for batch in batches])
        with amx_guard(model):
            for batch in batches:
                rows = hidden[first : first + len(batch.step.tokens)]
                first += len(rows)
                with self._caches.layer(layer, batch.placed) as cache:
                    found, new = predict(self._placed_ops, model.cfg, model.outer, self.mtp, cache, rows, batch.step)
                if batch.wanted:
                    logits.append(found.float())
                    states.append(batch.step.wanted(new))
        self._caches.finish()
        return torch.cat(logits), torch.cat(states)

    def _micro_batches(self, chunks: Sequence[Chunk], known: Tensor | None) -> Iterator[MicroBatch]:
        """A step's chunks in micro-batches, each with buffers of its own."""
        for index, some in enumerate(split(chunks, self._sequences, self._micro_tokens)):
            placed = self._caches.place(index, some, known)
            yield MicroBatch(placed, any(chunk.logits for chunk in some))


def micro_batch_tokens(policy: Policy, max_tokens: int, device: torch.device) -> int:
    """The most tokens of a micro-batch, in steps of up to `max_tokens`."""
    return min(-(-max_tokens // policy.micro_batches), MICRO_BATCH_TOKENS[device.type])


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
            group.append(replace(chunk, tokens=piece, start=chunk.start + done, logits=logits))
            done, room = done + taken, room - taken
            if not room or len(group) == sequences:
                yield group
                group, room = [], tokens
    if group:
        yield group
