"""Cost: the seconds of a prefill and of a decoding step, by what is used meanwhile."""

from dataclasses import dataclass
from math import ceil

from genwright.placement.footprint import MICRO_BATCH_TOKENS, STEP_TOKENS, Footprint, Workload
from genwright.placement.machine import Machine, rate_at
from genwright.placement.model_facts import ModelFacts
from genwright.placement.policy import Policy
from genwright.placement.shares import Vector, vector

CALLS = {"cpu": 12, "cuda": 56}  # small operations in whose time the host begins a block of a micro-batch
MOVE_CALLS = 28  # further ones where a GPU's activations or cache move,
SEQUENCE_CALLS = 3  # and for each sequence whose cache moves
PROMPT = {"cpu": 1.0, "cuda": 0.75}  # of the rate of products alone, which prompts reach with all that is between them
FLASH = 0.5  # of the rate of products, which attention over a prompt reaches
PACKED = 0.5  # of the rate of products, which products with packed weights reach

# What a step uses, all at the same time where moves and computation overlap.
TO_GPU, FROM_GPU, DISK, COMPUTE = "the bus to the GPU", "the bus from the GPU", "the disk", "the computation"
LAUNCHES = "the launches"  # of a GPU's operations, by the host
Costs = dict[str, Vector]  # by what is used


@dataclass(frozen=True)
class Cost:
    """A model on a machine with a workload in micro-batches: seconds as vectors over the shares."""

    facts: ModelFacts
    machine: Machine
    work: Workload
    policy: Policy  # its micro-batches and switches; its shares are not used

    @property
    def footprint(self) -> Footprint:
        return Footprint(self.facts, self.machine.kind, self.work, self.policy)

    @property
    def tokens_at_once(self) -> int:
        """Tokens of prompts that a block computes at a time."""
        return min(self.footprint.micro_batch * self.work.prompt_length, MICRO_BATCH_TOKENS[self.machine.kind])

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
        return self._used(moves, vector(self._prefill_compute()), tokens / self.tokens_at_once)

    def decode(self) -> Costs:
        """Seconds of one decoding step, at the mean length of its sequences."""
        facts, work, rates = self.facts, self.work, self.machine.rates
        count = work.sequences
        # Sparse attention reads all keys, and the values of the tokens with the highest weights.
        share = (1 + self.policy.sparsity) / 2
        read = count * facts.cache_read(work.mean_length) * share
        pages = count * facts.cache_held(ceil(work.mean_length)) * share  # what is moved
        moves = self._moves(facts.layers * facts.moved(count), count, pages, facts.layers * count * facts.cache_row)
        compute = vector(self._decode_compute())
        if self.policy.cpu_attention:
            # It waits for the queries, and the block for its result, so that no other computation runs meanwhile.
            operations = count * facts.keys(work.mean_length) * facts.attention
            rate = min(rates.host_attention, rates.host_read)  # what was measured may have fitted in a cache
            seconds = max(read / rate, operations / rate_at(rates.host_matmul, 8))
            compute += vector(cache_cpu=seconds - self._attention_read())
        return self._used(moves, compute, self.footprint.micro_batches)

    def _used(self, moves: Costs, compute: Vector, times: float) -> Costs:
        """All that a phase uses in which each block computes so many micro-batches."""
        block = self.facts.layers * self.machine.rates.call
        launches = vector(block * times * CALLS[self.machine.kind])
        if not self.machine.has_gpu:  # what computes begins the operations too
            return moves | {COMPUTE: compute + launches}
        states = block * times * MOVE_CALLS
        cache = states + block * self.work.sequences * SEQUENCE_CALLS
        launches += vector(cache_cpu=cache, cache_disk=cache, activations_cpu=states, activations_disk=states)
        return moves | {COMPUTE: compute, LAUNCHES: launches}

    def _moves(self, weights: float, tokens: int, cache_read: float, cache_written: float) -> Costs:
        """Seconds of the bus and the disk for bytes of weights, cache and the hidden states of some tokens."""
        rates, disk = self.machine.rates, self.machine.disk
        hidden = self.facts.layers * tokens * self.facts.hidden
        weights_rate = rates.to_device if self.policy.pin else rates.to_device_pageable
        here = 0.0 if self.policy.cpu_attention else cache_read  # what crosses the bus of the cache in CPU memory
        blocks = vector(weights_cpu=weights, weights_disk=weights)
        states = vector(activations_cpu=hidden, activations_disk=hidden)
        to_gpu = states + vector(cache_cpu=here, cache_disk=cache_read)
        from_gpu = states + vector(cache_cpu=cache_written, cache_disk=cache_written)
        reads = vector(weights_disk=weights, cache_disk=cache_read, activations_disk=hidden)
        writes = vector(cache_disk=cache_written, activations_disk=hidden)
        return {
            TO_GPU: blocks / weights_rate + to_gpu / rates.to_device,
            FROM_GPU: from_gpu / rates.to_host,
            DISK: reads / disk.read + writes / disk.write,
        }

    def _prefill_compute(self) -> float:
        facts, work, rates = self.facts, self.work, self.machine.rates
        tokens = work.sequences * work.prompt_length
        pairs = work.sequences * facts.pairs(work.prompt_length)
        attention = pairs * facts.attention / (FLASH * max(rates.device_matmul.values()))
        blocks = self._products(self.tokens_at_once, tokens / self.tokens_at_once, self.passes)
        return attention + blocks / PROMPT[self.machine.kind] + self._head()

    def _decode_compute(self) -> float:
        return (
            self._products(self.footprint.micro_batch, self.footprint.micro_batches, 1)
            + self._attention_read()
            + self._head()
        )

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
        return facts.layers * seconds
