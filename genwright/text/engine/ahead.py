"""DecodeLoop: steps of one token per sequence, each launched before the host has read the tokens of the previous one.

The sampled tokens, positions and slots of a step become the inputs of the next one on the device. The host reads a
step's tokens while the next step runs, so it sees the end of a request one step late and drops that step's token.
"""

from collections import deque
from collections.abc import Sequence

import torch

from genwright.kernels import PAGE
from genwright.kernels.triton.advance import advance
from genwright.kernels.triton.sample import sample
from genwright.rng import key, key_tensor
from genwright.text.engine.cuda_graphs import GraphExecutor
from genwright.text.engine.request import Request
from genwright.text.engine.sampler import adjusts
from genwright.text.ops.step import Chunk, QueryGroup, Step


class DecodeLoop:
    """Decodes a fixed set of requests; the engine calls `begin` when the set changes."""

    def __init__(self, executor: GraphExecutor):
        self.executor = executor
        device, most = executor.model.device, executor.buffers.most_sequences
        self.requests: list[Request] = []
        self._bucket = 0
        # Of each request: the `_shape` of its pages and the page tables that were written.
        self._pages: list[tuple[tuple[int, ...], list[list[int]]]] = []
        self._floats = torch.zeros(3, most, dtype=torch.float32, device=device)  # temperature, top_p, min_p
        self._ints = torch.zeros(2, most, dtype=torch.int32, device=device)  # key(seed, sample), top_k
        self._sampled = torch.zeros(most, dtype=torch.int64, device=device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._flying: deque[tuple[torch.Tensor, torch.cuda.Event | None]] = deque()

    @staticmethod
    def serves(request: Request) -> bool:
        """Whether the host has nothing to do between a request's tokens."""
        return request.params.logprobs is None and not adjusts(request) and request.pending == 1

    @property
    def flying(self) -> int:
        """Steps launched whose tokens the host has not read."""
        return len(self._flying)

    def begin(self, requests: Sequence[Request]) -> None:
        """Write the inputs of the first step."""
        assert not self._flying
        self.requests = list(requests)
        chunks = []
        self._pages = []
        for request in requests:
            assert request.pages is not None
            chunks.append(Chunk(request.tokens[-1:], request.pages.length, request.pages.tables()))
            self._pages.append((_shape(request), request.pages.tables()))
        self._bucket = self.executor.bucket(len(chunks))
        self.executor.buffers.fill(chunks, padded=self._bucket)
        # The state that a previous step would have left: the token is sampled, and the length does not count it yet.
        self._sampled.copy_(self.executor.buffers.tokens[: len(self._sampled)])
        self.executor.buffers.lengths[: len(chunks)].sub_(1)
        params = [request.params for request in requests]
        settings = [[p.temperature for p in params], [p.top_p for p in params], [p.min_p for p in params]]
        self._floats[:, : len(params)].copy_(torch.tensor(settings))
        keys = key_tensor([key(request.seed, request.sample) for request in requests])
        top_k = torch.tensor([p.top_k for p in params], dtype=torch.int32)
        self._ints[:, : len(params)].copy_(torch.stack((keys, top_k)))

    def launch(self) -> None:
        """Launch a step; its pages must have been reserved."""
        self._follow_pages()
        if self._bucket > self.executor.max_graph_tokens:
            self._step()
        elif self._bucket in self._graphs:
            self._graphs[self._bucket].replay()
        else:  # `capture` runs the step once before it captures it
            self._graphs[self._bucket], _ = self.executor.capture(self._step)
        on_gpu = self._sampled.is_cuda
        host = torch.empty(self._bucket, dtype=torch.int64, pin_memory=on_gpu)
        host.copy_(self._sampled[: self._bucket], non_blocking=on_gpu)
        event = torch.cuda.Event() if on_gpu else None
        if event is not None:
            event.record()
        self._flying.append((host, event))

    def collect(self) -> list[int]:
        """Wait for the oldest launched step and return its tokens, with -1 where logits were NaN."""
        host, event = self._flying.popleft()
        if event is not None:
            event.synchronize()
        return host.tolist()[: len(self.requests)]

    def _step(self) -> torch.Tensor:
        buffers, count = self.executor.buffers, self._bucket
        lengths, sampled = buffers.lengths[:count], self._sampled[:count]
        advance(sampled, buffers.tokens, buffers.positions, buffers.slots, lengths, buffers.page_tables)
        logits = self.executor.forward(self._view())
        (temperature, top_p, min_p), (keys, top_k) = self._floats[:, :count], self._ints[:, :count]
        return sample(logits, keys, lengths, temperature, top_k, top_p, min_p, out=sampled)

    def _view(self) -> Step:
        rows, width = self._bucket, self.executor.buffers.page_tables.shape[2]
        return self.executor.buffers.view(rows, rows, rows, None, [QueryGroup(0, rows, 1, 0, width * PAGE)])

    def _follow_pages(self) -> None:
        """Write changed entries of the page tables one by one: `fill_` does not synchronise with the device."""
        tables = self.executor.buffers.page_tables
        for row, request in enumerate(self.requests):
            if request.pages is None or _shape(request) == self._pages[row][0]:
                continue
            old, new = self._pages[row][1], request.pages.tables()
            for table, before, after in zip(tables, old, new, strict=True):
                for place, page in enumerate(after):
                    if place >= len(before) or before[place] != page:
                        table[row, place].fill_(page)
            self._pages[row] = (_shape(request), new)


def _shape(request: Request) -> tuple[int, ...]:
    """A value that changes whenever the sequence's pages change."""
    assert request.pages is not None
    return len(request.pages.shared), request.pages.capacity(), *request.pages.passed
