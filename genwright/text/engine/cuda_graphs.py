"""GraphExecutor: captures steps with recurring shapes as CUDA graphs and replays them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np
import torch

from genwright.device import upload
from genwright.kernels.compile_ahead import KernelCompiler
from genwright.kernels.triton.feed_back import accept, feed_back
from genwright.kernels.triton.sample import sample
from genwright.parallel.pipeline import Pipeline
from genwright.text.engine.executor import Int32s, ResidentExecutor, Verified
from genwright.text.loader import Model
from genwright.text.ops.protocol import Weights
from genwright.text.ops.step import Chunk, Layout, QueryGroup, Step, padding
from genwright.text.ops.torch_ops import TorchOps
from genwright.text.ops.triton_ops import MAX_DECODE_QUERIES

# The tokens of prompt chunks beside decoding sequences are padded to one of these numbers. Launching the kernels of 32
# layers one by one takes an H200's host 14 ms, and more tokens take the device longer than that. Each further size,
# also of the decoding sequences, is a graph whose capture holds up the first requests.
PROMPT_TOKENS = (32, 64, 128, 256, 512)
MAX_PROMPTS = 8  # of which the last is padding
MIN_BUCKET = 64  # decoding sequences beside prompt chunks; fewer take about as long, because weights are read once


class GraphExecutor(ResidentExecutor):
    """Steps of decoding sequences, also beside a few prompt chunks, are padded to a size that has a graph.

    Sequences with the same few tokens have one graph for each (batch bucket, tokens and logits per sequence), decoding
    sequences with prompt chunks one for each (batch bucket, prompt tokens). Other steps run without a graph.
    """

    def __init__(
        self,
        model: Model,
        ops: TorchOps,
        pages: int,
        max_batch: int,
        max_tokens: int,
        mtp: Weights | None = None,
        cache_bits: int | None = None,
        pipeline: Pipeline | None = None,
        max_graph_tokens: int = 0,  # larger steps run without a graph
        compiler: KernelCompiler | None = None,  # at work on kernels of the first steps
    ):
        super().__init__(model, ops, pages, max_batch + MAX_PROMPTS, max_tokens, mtp, cache_bits, pipeline)
        self.max_batch, self.max_graph_tokens = max_batch, max_graph_tokens
        # Latent attention reads the length of a prompt on the host.
        mixes = mtp is None and pipeline is None and model.cfg.mla is None
        self.max_mixed_tokens = min(max_tokens, max_graph_tokens) if mixes else 0
        self._graphs: dict[tuple[int, int, int], tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor | None]] = {}
        # None for a shape that has run once, without a graph, because many shapes occur only once.
        self._mixed: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, torch.Tensor] | None] = {}
        self._pool: Any = None
        self._compiler = compiler or KernelCompiler()
        self._decoding: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}  # by batch bucket and tokens per sequence
        self._inputs = torch.zeros(max_batch, 5, dtype=torch.int64, device=model.device)  # bounds, then settings
        self._drawn = torch.zeros(max_batch, MAX_DECODE_QUERIES, dtype=torch.int64, device=model.device)

    def run(self, chunks: Sequence[Chunk], known: torch.Tensor | None = None) -> torch.Tensor:
        queries, wanted = len(chunks[0].tokens), chunks[0].logits
        same = all(len(chunk.tokens) == queries and chunk.logits == wanted for chunk in chunks)
        bucket = self.bucket(len(chunks))
        if not same or queries > MAX_DECODE_QUERIES or wanted not in (1, queries):
            return self._run_mixed(chunks, known)
        if bucket * queries > self.max_graph_tokens:
            return super().run(chunks, known)
        padded = [*chunks, *[padding(queries, wanted)] * (bucket - len(chunks))]
        layout = self.buffers.write(padded, known).for_graph()
        shape = bucket, queries, wanted
        if shape not in self._graphs:
            # Each run has a step of its own, because a step keeps what follows from its first inputs.
            graph, logits = self.capture(lambda: self.forward(self.buffers.view(layout)))
            self._graphs[shape] = graph, logits, self.hidden
        graph, logits, self.hidden = self._graphs[shape]
        graph.replay()
        return logits[: len(chunks) * wanted]

    @torch.inference_mode()
    def _run_mixed(self, chunks: Sequence[Chunk], known: torch.Tensor | None) -> torch.Tensor:
        """Run decoding sequences and then prompt chunks, by a graph of the layers if they fit in one.

        The head is not part of it, because its logits would take much memory in each graph.
        """
        decoding = len(list(takewhile(lambda chunk: len(chunk.tokens) == 1, chunks)))
        prompts, tokens = chunks[decoding:], sum(len(chunk.tokens) for chunk in chunks[decoding:])
        bucket = self.bucket(max(decoding, MIN_BUCKET)) if decoding else 0
        rows = prompt_rows(tokens)
        if rows is None or bucket + rows > self.max_mixed_tokens or len(prompts) >= MAX_PROMPTS:
            return super().run(chunks, known)
        if any(chunk.logits > 1 for chunk in chunks):
            return super().run(chunks, known)
        padded = [
            *chunks[:decoding], *[padding(1)] * (bucket - decoding),
            *prompts, padding(rows - tokens), *[padding(0)] * (MAX_PROMPTS - 1 - len(prompts)),
        ]  # fmt: skip
        layout = self.buffers.write(padded, known, least_logits=bucket + MAX_PROMPTS).for_graph()
        groups = [QueryGroup(0, bucket, 1, 0, 0)] if bucket else []
        groups.append(QueryGroup(bucket, MAX_PROMPTS, rows, bucket, 0))
        step = self.buffers.view(replace(layout, logits=bucket + MAX_PROMPTS, groups=groups))
        x = self._replay_mixed((bucket, rows), step)
        return self.head(x[: layout.logits], self.buffers.view(layout))

    def _replay_mixed(self, shape: tuple[int, int], step: Step) -> torch.Tensor:
        """The hidden states whose logits are wanted; a graph is captured when its shape occurs again."""
        if shape not in self._mixed:
            if not self._mixed:  # other shapes have nearly the same kernels, and people wait
                self._compile(lambda: self.head(self.layers(step), step))
            self._mixed[shape] = None
            return self.layers(step)
        graph, x = self._mixed[shape] or self.record(lambda: self.layers(step))
        self._mixed[shape] = graph, x
        graph.replay()
        return x

    @torch.inference_mode()
    def decode(
        self, chunks: Sequence[Chunk], settings: Int32s, counts: Sequence[int], verified: Verified | None = None
    ) -> torch.Tensor | None:
        """A graph runs, samples and makes its tokens its next inputs; it is replayed for each further token."""
        bucket, queries, most = self.bucket(len(chunks)), len(chunks[0].tokens), max(counts)
        if self.model.columns != self.model.cfg.vocab_size:
            return None  # the graph draws from whole rows of logits
        if most > MAX_DECODE_QUERIES or queries > MAX_DECODE_QUERIES or bucket * queries > self.max_graph_tokens:
            return None
        last = [Chunk(chunk.tokens[-1:], chunk.start + queries - 1, chunk.tables) for chunk in chunks]
        for size, same in ((1, last), (queries, chunks)):
            if (bucket, size) not in self._decoding:
                layout = self._write(same, bucket, settings, counts)
                self._decoding[bucket, size] = self._capture_decoding(layout)
        self._write(chunks, bucket, settings, counts, 0 if verified is None else int(verified.rows[:, 2].max()))
        if verified is not None:
            buffers, inputs = self.buffers, self._inputs
            rows = upload(torch.from_numpy(verified.rows), self.model.device)
            step = buffers.tokens, buffers.positions, buffers.lengths
            tokens = verified.drawn, verified.proposed
            accept(rows, *tokens, inputs, _settings(inputs), step, buffers.slots, buffers.page_tables)
        self._decoding[bucket, queries].replay()
        for _ in range(most - 1):
            self._decoding[bucket, 1].replay()
        return self._drawn[: len(chunks)].clone()  # the next call overwrites it

    def _write(
        self, chunks: Sequence[Chunk], bucket: int, settings: Int32s, counts: Sequence[int], accepted: int = 0
    ) -> Layout:
        """Write the inputs of `decode`; padding sequences draw a token that nobody reads."""
        inputs = np.zeros((bucket, self._inputs.shape[1]), np.int64)
        firsts = [chunk.start + len(chunk.tokens) for chunk in chunks]
        inputs[: len(chunks)] = np.column_stack((firsts, np.add(firsts, counts) - 1, settings.view(np.int64)))
        self._inputs[:bucket].copy_(torch.from_numpy(inputs).pin_memory(), non_blocking=True)
        padded = [*chunks, *[padding(len(chunks[0].tokens), chunks[0].logits)] * (bucket - len(chunks))]
        return self.buffers.write(padded, further=max(counts) + accepted).for_graph()

    def _capture_decoding(self, layout: Layout) -> torch.cuda.CUDAGraph:
        buffers, inputs = self.buffers, self._inputs[: layout.sequences]
        settings = _settings(inputs)
        written = buffers.tokens, buffers.positions, buffers.lengths, buffers.offsets

        def work() -> torch.Tensor:
            drawn = sample(self.forward(buffers.view(layout)), settings)
            feed_back(drawn, inputs, settings, self._drawn, written, buffers.slots, buffers.page_tables)
            return drawn

        buffers.slots.fill_(-1)  # the run before the capture must not write to the cache: its tokens are not known yet
        return self.capture(work)[0]

    def bucket(self, sequences: int) -> int:
        """The batch size of the graph for this number of sequences: the next power of two."""
        return min(1 << (sequences - 1).bit_length(), self.max_batch)

    @torch.inference_mode()
    def capture(self, work: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        """Capture `work` as a graph; it runs once first, so that kernels are compiled and libraries initialised."""
        self._compile(work)
        work()
        return self.record(work)

    def _compile(self, work: Callable[[], torch.Tensor]) -> None:
        """Compile the kernels of `work` together; with several ranks, each when it is first launched."""
        if self.ops.group is not None or self.pipeline is not None:
            return  # a dry run that fails would leave the other ranks waiting
        compiler, self._compiler = self._compiler, KernelCompiler()
        with compiler:
            compiler.dry_run(work)

    @torch.inference_mode()
    def draw_token(self) -> torch.Tensor:
        """Decode one token of a sequence that begins with it, in the first page."""
        first = Chunk([0], 0, [[0]] * len(self.buffers.slots))
        step = self.buffers.view(self.buffers.write([first]).for_graph())
        return sample(self.forward(step), _settings(self._inputs[:1]))

    def record(self, work: Callable[[], torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        """Capture `work`, which has run before, as a graph."""
        torch.cuda.synchronize(self.model.device)
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as an image model's, may allocate memory meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = work()
        self._pool = self._pool or graph.pool()
        return graph, result


def prompt_rows(tokens: int) -> int | None:
    """The tokens of the graph for prompt chunks of so many tokens; None if there is none."""
    return next((rows for rows in PROMPT_TOKENS if tokens <= rows), None)


def _settings(inputs: torch.Tensor) -> torch.Tensor:
    """The sampler's settings, which follow the bounds."""
    return inputs.view(torch.int32)[:, 4:]
