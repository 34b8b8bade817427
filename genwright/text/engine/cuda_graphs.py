"""GraphExecutor: captures steps with recurring shapes as CUDA graphs and replays them."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from genwright.text.engine.executor import ResidentExecutor
from genwright.text.loader import Model
from genwright.text.ops.protocol import Weights
from genwright.text.ops.step import Chunk
from genwright.text.ops.torch_ops import TorchOps
from genwright.text.ops.triton_ops import MAX_DECODE_QUERIES


class GraphExecutor(ResidentExecutor):
    """One graph for each (batch bucket, tokens and logits per sequence); other steps run without a graph."""

    def __init__(
        self,
        model: Model,
        ops: TorchOps,
        pages: int,
        max_batch: int,
        max_tokens: int,
        mtp: Weights | None = None,
        cache_bits: int | None = None,
        max_graph_tokens: int = 0,  # larger steps run without a graph
    ):
        super().__init__(model, ops, pages, max_batch, max_tokens, mtp, cache_bits)
        self.max_graph_tokens = max_graph_tokens
        self._graphs: dict[tuple[int, int, int], tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor | None]] = {}
        self._pool: Any = None

    def run(self, chunks: Sequence[Chunk], known: torch.Tensor | None = None) -> torch.Tensor:
        queries, wanted = len(chunks[0].tokens), chunks[0].logits
        same = all(len(chunk.tokens) == queries and chunk.logits == wanted for chunk in chunks)
        bucket = self.bucket(len(chunks))
        if not same or queries > MAX_DECODE_QUERIES or wanted not in (1, queries):
            return super().run(chunks, known)
        if bucket * queries > self.max_graph_tokens:
            return super().run(chunks, known)
        layout = self.buffers.write(chunks, bucket, known)
        shape = bucket, queries, wanted
        if shape not in self._graphs:
            step = self.buffers.view(layout)
            graph, logits = self.capture(lambda: self.forward(step))
            self._graphs[shape] = graph, logits, self.hidden
        graph, logits, self.hidden = self._graphs[shape]
        graph.replay()
        return logits[: len(chunks) * wanted]

    def bucket(self, sequences: int) -> int:
        """The batch size of the graph for this number of sequences: the next power of two."""
        return min(1 << (sequences - 1).bit_length(), self.buffers.most_sequences)

    @torch.inference_mode()
    def capture(self, work: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        """Capture `work` as a graph; it runs once first, so that kernels are compiled and libraries initialised."""
        work()
        torch.cuda.synchronize(self.model.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = work()
        self._pool = self._pool or graph.pool()
        return graph, result
