"""Parallel slots of llama.cpp: several sequences in one context, decoded together while prompts are read in chunks.

llama-cpp-python has no such loop, so this one is as llama.cpp's server has it: a step has one token of every sequence
that decodes, and the rest of the step is filled with prompts, first come first served.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp

from genwright.bench.serving import Arrival, Served, served

SLOTS = 32  # sequences at a time, at most
STEP = 512  # tokens of a step, at most


@dataclass
class _Sequence:
    """A request in a slot."""

    index: int
    slot: int
    tokens: list[int]  # not computed yet
    left: int  # tokens to generate
    sampler: Any
    length: int = 0  # tokens computed
    row: int | None = None  # of the step, whose logits give the next token


class Slots:
    """A context of a loaded model with room for several sequences."""

    def __init__(self, model: Any, context: int, threads: int, top_k: int, temperature: float):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max = -(-context // 256) * 256 * SLOTS, SLOTS  # a slot has a multiple of 256
        params.n_batch = params.n_ubatch = STEP
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(model, params)
        if self.context is None:
            raise MemoryError
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.batch = llama_cpp.llama_batch_init(STEP, 0, 1)
        self.top_k, self.temperature = top_k, temperature

    def serve(self, requests: Sequence[Arrival]) -> Served:
        times: list[list[float]] = [[] for _ in requests]
        waiting, live, free = deque(enumerate(requests)), list[_Sequence](), list(range(SLOTS))
        started = time.perf_counter()
        while waiting or live:
            now = time.perf_counter() - started
            while waiting and free and waiting[0][1].at <= now:
                live.append(self._start(*waiting.popleft(), free.pop()))
            if not live:
                time.sleep(waiting[0][1].at - now)
                continue
            self._step(live)
            moment = time.perf_counter()
            for sequence in [each for each in live if each.row is not None]:
                times[sequence.index].append(moment)
                if not sequence.left:
                    llama_cpp.llama_memory_seq_rm(self.memory, sequence.slot, -1, -1)
                    llama_cpp.llama_sampler_free(sequence.sampler)
                    free.append(sequence.slot)
                    live.remove(sequence)
        return served(requests, started, times)

    def close(self) -> None:
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.context)

    def _start(self, index: int, request: Arrival, slot: int) -> _Sequence:
        sampler = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        for part in (
            llama_cpp.llama_sampler_init_top_k(self.top_k),
            llama_cpp.llama_sampler_init_temp(self.temperature),
            llama_cpp.llama_sampler_init_dist(index),
        ):
            llama_cpp.llama_sampler_chain_add(sampler, part)
        return _Sequence(index, slot, list(request.prompt), request.new, sampler)

    def _step(self, live: Sequence[_Sequence]) -> None:
        """Compute a step; sequences whose tokens are all computed then get their next token, and their `row` is set."""
        self.batch.n_tokens = 0
        for sequence in sorted(live, key=lambda each: len(each.tokens) > 1):  # those that decode come first
            chunk = sequence.tokens[: STEP - self.batch.n_tokens]
            self._add(sequence, chunk)
            sequence.tokens = sequence.tokens[len(chunk) :]
            sequence.row = None if sequence.tokens else self.batch.n_tokens - 1
        code = llama_cpp.llama_decode(self.context, self.batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code}.")
        for sequence in live:
            if sequence.row is not None:
                sequence.tokens = [llama_cpp.llama_sampler_sample(sequence.sampler, self.context, sequence.row)]
                sequence.left -= 1

    def _add(self, sequence: _Sequence, chunk: Sequence[int]) -> None:
        batch, first = self.batch, self.batch.n_tokens
        for place, token in enumerate(chunk, first):
            batch.token[place], batch.pos[place] = token, sequence.length + place - first
            batch.seq_id[place][0], batch.n_seq_id[place] = sequence.slot, 1
            batch.logits[place] = False
        batch.n_tokens += len(chunk)
        sequence.length += len(chunk)
        if chunk and len(chunk) == len(sequence.tokens):
            batch.logits[batch.n_tokens - 1] = True
