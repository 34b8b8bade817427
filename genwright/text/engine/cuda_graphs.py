"""GraphExecutor: steps whose shapes repeat, captured once as CUDA graphs and replayed."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from genwright.text.engine.executor import ResidentExecutor
from genwright.text.loader import Model
from genwright.text.ops.protocol import Weights
from genwright.text.ops.step import Chunk
from genwright.text.ops.torch_ops import TorchOps
from genwright.text.ops.triton_ops import MOST_QUERIES


class GraphExecutor(ResidentExecutor):
    """A graph for each (batch bucket, tokens per sequence); other steps, such as prompts', run as they are."""

    def __init__(
        self,
        model: Model,
        ops: TorchOps,
        pages: int,
        max_batch: int,
        max_tokens: int,
        mtp: Weights | None = None,
        cache_bits: int | None = None,
        most_graphed: int = 0,  # tokens of a step
    ):
        super().__init__(model, ops, pages, max_batch, max_tokens, mtp, cache_bits)
        self.most_graphed = most_graphed
        self._logits: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._pool: Any = None

    def run(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        queries = len(chunks[0].tokens)
        same = all(len(chunk.tokens) == queries and (queries == 1 or chunk.all_logits) for chunk in chunks)
        bucket = self.bucket(len(chunks))
        if not same or queries > MOST_QUERIES or bucket * queries > self.most_graphed:
            return super().run(chunks)
        step = self.buffers.fill(chunks, padded=bucket)
        if (bucket, queries) not in self._logits:
            self._logits[bucket, queries] = self.capture(lambda: self.forward(step))
        graph, logits = self._logits[bucket, queries]
        graph.replay()
        return logits[: len(chunks) * queries].clone()

    def bucket(self, sequences: int) -> int:
        """Sequences of the graph that serves so many: the next power of two."""
        return min(1 << (sequences - 1).bit_length(), self.buffers.most_sequences)

    @torch.inference_mode()
    def capture(self, work: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        """A graph of `work`, which runs once before: kernels are compiled and libraries set up by then."""
        work()
        torch.cuda.synchronize(self.model.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = work()
        self._pool = self._pool or graph.pool()
        return graph, result
