"""Cost: the seconds of a prefill and a decoding step under a policy, and the bytes in each tier.

Everything is linear in the nine shares of a policy (weights, cache and activations on the GPU, in CPU memory and on
disk), so that the planner can solve for them: a cost is a vector of what each share adds, and a constant.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np

from genwright.placement.machine import Machine, rate_at
from genwright.placement.model_facts import ModelFacts
from genwright.placement.policy import Policy

WHAT = ("weights", "cache", "activations")
PLACES = ("gpu", "cpu", "disk")
SHARES = tuple(f"{what}_{place}" for what in WHAT for place in PLACES)
Vector = np.ndarray[tuple[int], np.dtype[np.float64]]  # one number for each of SHARES, and a constant

STEP_TOKENS = {"cpu": 4096, "cuda": 32768}  # the most of a step; further ones move the weights once more
MICRO_BATCH_TOKENS = {"cpu": 512, "cuda": 4096}  # that a block computes at a time; more gain no speed and need memory
CALLS = 12  # operations of a block
BUFFERS = 2  # of weights: one is filled while the other is used
CACHE_BUFFERS = 3.75  # of a layer's cache: one is filled, one is used, one is written back; a quarter for growth
FLASH = 0.5  # of the rate of products, which attention over a prompt reaches
PACKED = 0.5  # of the rate of products, which products with packed weights reach
RESERVE = 1 << 28  # bytes of a GPU for the workspaces of libraries and for page tables

# What a step uses, all at the same time where moves and computation overlap.
TO_GPU, FROM_GPU, MEMORY = "the bus to the GPU", "the bus from the GPU", "the CPU's memory"
DISK, COMPUTE = "the disk", "the computation"
Costs = dict[str, Vector]  # by what is used


@dataclass(frozen=True)
class Workload:
    """Sequences that run together, all with a prompt and an answer of the same length."""

    prompt_length: int
    max_new_tokens: int
    sequences: int

    @property
    def mean_length(self) -> float:
        """Of the sequences while they are decoded."""
        return self.prompt_length + self.max_new_tokens / 2

    @property
    def longest(self) -> int:
        return self.prompt_length + self.max_new_tokens


@dataclass(frozen=True)
class Cost:
    """A model on a machine with a workload in micro-batches: seconds and bytes as vectors over the shares."""

    facts: ModelFacts
    machine: Machine
    work: Workload
    policy: Policy  # its micro-batches and switches; its shares are not used
    streamed: bool = True  # or resident, with no buffers for what is on its way

    @property
    def micro_batch(self) -> int:
        """Sequences that a block computes at a time."""
        return min(self.policy.micro_batch or self.work.sequences, self.work.sequences)

    @property
    def micro_batches(self) -> int:
        return ceil(self.work.sequences / self.micro_batch)

    @property
    def tokens_at_once(self) -> int:
        """Tokens of prompts that a block computes at a time."""
        return min(self.micro_batch * self.work.prompt_length, MICRO_BATCH_TOKENS[self.machine.kind])

    @property
    def passes(self) -> int:
        """Steps that read the prompts, each of which moves the weights."""
        return ceil(self.work.sequences * self.work.prompt_length / STEP_TOKENS[self.machine.kind])

    def prefill(self) -> Costs:
        """Seconds in which all prompts are read, by what is used meanwhile."""
        facts, work = self.facts, self.work
        tokens = work.sequences * work.prompt_length
        weights = self.passes * facts.layers * facts.moved(tokens / self.passes)
        moves = self._moves(weights, tokens, 0.0, facts.layers * tokens * facts.cache_row)
        return moves | {COMPUTE: _vector(self._prefill_compute())}

    def decode(self) -> Costs:
        """Seconds of one decoding step, at the mean length of its sequences."""
        facts, work, rates = self.facts, self.work, self.machine.rates
        count = work.sequences
        # Sparse attention reads all keys, and the values of the tokens with the highest weights.
        read = count * facts.cache_read(work.mean_length) * (1 + self.policy.sparsity) / 2
        moves = self._moves(facts.layers * facts.moved(count), count, read, facts.layers * count * facts.cache_row)
        compute = _vector(self._decode_compute())
        if self.policy.cpu_attention:
            # It waits for the queries, and the block for its result, so that no other computation runs meanwhile.
            operations = count * facts.keys(work.mean_length) * facts.attention
            seconds = max(read / rates.host_attention, operations / rate_at(rates.host_matmul, 8))
            compute += _vector(cache_cpu=seconds - self._attention_read())
        return moves | {COMPUTE: compute}

    def bytes(self) -> Costs:
        """Bytes in each tier at the peak."""
        facts, work = self.facts, self.work
        weights, cache = facts.blocks, work.sequences * facts.cache_held(work.longest)
        activations = min(work.sequences * work.prompt_length, STEP_TOKENS[self.machine.kind]) * facts.hidden
        # What is on its way: of blocks, of a layer's cache, and of hidden states.
        block, part = BUFFERS * (facts.largest_block - facts.largest_experts), self.micro_batch / work.sequences
        layer, states = CACHE_BUFFERS * part * cache / facts.layers, BUFFERS * self.tokens_at_once * facts.hidden
        fixed = facts.outer + self.tokens_at_once * facts.working + work.sequences * facts.logits + facts.widened
        if self.machine.has_gpu:
            fixed += RESERVE
        if self.streamed:
            # A weight that is partly on the GPU is put together there, and all experts have a place.
            fixed += BUFFERS * (facts.largest_weight + facts.largest_experts)
        on_gpu = _vector(fixed, weights_gpu=weights, cache_gpu=cache, activations_gpu=activations)
        on_gpu += _vector(weights_cpu=block, cache_cpu=layer, activations_cpu=states)
        on_gpu += _vector(weights_disk=block, cache_disk=layer, activations_disk=states)
        on_cpu = _vector(weights_cpu=weights, cache_cpu=cache, activations_cpu=activations)
        if self.machine.has_gpu:
            on_cpu += _vector(weights_disk=BUFFERS * facts.largest_block, cache_disk=layer, activations_disk=states)
        on_disk = _vector(weights_disk=weights, cache_disk=cache, activations_disk=activations)
        return {"gpu": on_gpu, "cpu": on_cpu, "disk": on_disk}

    def _moves(self, weights: float, tokens: int, cache_read: float, cache_written: float) -> Costs:
        """Seconds of the bus and the disk for bytes of weights, cache and the hidden states of some tokens."""
        rates, disk = self.machine.rates, self.machine.disk
        hidden = self.facts.layers * tokens * self.facts.hidden
        weights_rate = rates.to_device if self.policy.pin else rates.to_device_pageable
        here = 0.0 if self.policy.cpu_attention else cache_read  # what crosses the bus of the cache in CPU memory
        blocks = _vector(weights_cpu=weights, weights_disk=weights)
        states = _vector(activations_cpu=hidden, activations_disk=hidden)
        to_gpu = states + _vector(cache_cpu=here, cache_disk=cache_read)
        from_gpu = states + _vector(cache_cpu=cache_written, cache_disk=cache_written)
        reads = _vector(weights_disk=weights, cache_disk=cache_read, activations_disk=hidden)
        writes = _vector(cache_disk=cache_written, activations_disk=hidden)
        return {
            TO_GPU: blocks / weights_rate + to_gpu / rates.to_device,
            FROM_GPU: from_gpu / rates.to_host,
            DISK: reads / disk.read + writes / disk.write,
            MEMORY: (blocks + to_gpu + from_gpu + reads + writes) / rates.host_read,
        }

    def _prefill_compute(self) -> float:
        facts, work, rates = self.facts, self.work, self.machine.rates
        tokens = work.sequences * work.prompt_length
        pairs = work.sequences * facts.pairs(work.prompt_length)
        attention = pairs * facts.attention / (FLASH * max(rates.device_matmul.values()))
        blocks = self._products(self.tokens_at_once, tokens / self.tokens_at_once, self.passes)
        return attention + blocks + self._head()

    def _decode_compute(self) -> float:
        return self._products(self.micro_batch, self.micro_batches, 1) + self._attention_read() + self._head()

    def _attention_read(self) -> float:
        """Seconds in which a decoding step's attention reads the cache in the device's memory."""
        return self.work.sequences * self.facts.cache_read(self.work.mean_length) / self.machine.rates.device_read

    def _head(self) -> float:
        count, rates = self.work.sequences, self.machine.rates
        return 2 * self.facts.head * count / rate_at(rates.device_matmul, count)

    def _products(self, tokens: float, times: float, passes: int) -> float:
        """Seconds in which all blocks multiply `tokens` tokens, so many times, in steps of as many passes."""
        facts, rates = self.facts, self.machine.rates
        chosen = tokens * facts.top_k / (facts.experts * facts.visited(tokens))  # tokens of an expert that has some
        routed = facts.expert_parameters * facts.top_k / facts.experts  # numbers of experts for each token
        plain = 2 * facts.parameters * tokens / rate_at(rates.device_matmul, tokens)
        plain += 2 * routed * tokens / rate_at(rates.device_matmul, chosen)
        seconds = times * plain
        if facts.packed:
            # Packed matrices are multiplied as they are, or widened once a step, whichever is faster.
            wide = facts.itemsize * (facts.parameters + facts.expert_parameters * facts.visited(tokens))
            widened = seconds + passes * (facts.moved(tokens) + wide) / rates.device_read
            peak = PACKED * max(rates.device_matmul.values())
            operations = 2 * (facts.parameters + routed) * tokens
            seconds = min(widened, times * max(facts.moved(tokens) / rates.device_read, operations / peak))
        return facts.layers * (seconds + times * CALLS * rates.call)


def share_vector(policy: Policy) -> Vector:
    """A policy's shares, from 0 to 1, and a one for the constant."""
    return np.array([share / 100 for what in WHAT for share in policy.shares(what)] + [1.0])


def _vector(constant: float = 0.0, **shares: float) -> Vector:
    return np.array([shares.get(name, 0.0) for name in SHARES] + [constant])
