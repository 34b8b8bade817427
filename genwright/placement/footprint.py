"""Footprint: the bytes that a model under a policy takes of each tier."""

from dataclasses import dataclass
from math import ceil

from genwright.placement.model_facts import ModelFacts
from genwright.placement.policy import Policy
from genwright.placement.shares import SHARES, WHAT, Vector, held_vector, vector

# Each step moves the weights once, so it reads many prompts.
STEP_TOKENS = {"cpu": 4096, "cuda": 32768}
MICRO_BATCH_TOKENS = {"cpu": 512, "cuda": 4096}  # that a block computes at a time; more gain no speed and need memory
CACHE_BUFFERS = 3.75  # of a layer's cache: one is filled, one is used, one is written back; a quarter for growth
RESERVE = 1 << 28  # bytes of a GPU for the workspaces of libraries and for page tables


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
class Footprint:
    """A model with a workload in micro-batches on a device of a type, cpu or cuda."""

    facts: ModelFacts
    kind: str
    work: Workload
    policy: Policy  # its micro-batches and switches; its shares are used by `parts` only
    step_tokens: int | None = None  # the most of a step, if not STEP_TOKENS

    @property
    def micro_batch(self) -> int:
        """Sequences that a block computes at a time."""
        return min(self.policy.micro_batch or self.work.sequences, self.work.sequences)

    @property
    def micro_batches(self) -> int:
        return ceil(self.work.sequences / self.micro_batch)

    def parts(self) -> dict[str, dict[str, int]]:
        """The bytes of weights, cache and activations in each tier, and of buffers for what moves or is computed."""
        shares, found = held_vector(self.policy, self.work.sequences), {}
        for tier, bytes_ in self.bytes(self.policy.weights_gpu < 100, self.policy.cache_gpu < 100).items():
            held = dict(zip((*SHARES, ""), bytes_ * shares, strict=True))
            parts = {what: round(held[f"{what}_{tier}"]) for what in WHAT}
            parts["weights"] += self.facts.outer if tier == "gpu" else 0
            found[tier] = {**parts, "buffers": ceil(sum(held.values())) - sum(parts.values())}
        return found

    def bytes(self, weights_move: bool, cache_moves: bool) -> dict[str, Vector]:
        """Bytes in each tier at the peak, linear in the shares where it is given which of them have buffers."""
        facts, work = self.facts, self.work
        weights, cache = facts.blocks, work.sequences * facts.cache_held(work.longest)
        tokens = min(work.sequences * work.longest, self.step_tokens or STEP_TOKENS[self.kind])
        activations = tokens * facts.hidden
        together = min(self.micro_batch * work.longest, MICRO_BATCH_TOKENS[self.kind])
        buffers = 2 if self.policy.overlap else 1  # one is filled while the other is used
        blocks, states = buffers * facts.largest_block, buffers * together * facts.hidden
        layer = CACHE_BUFFERS * self.micro_batch * facts.cache_held(work.longest) / facts.layers
        fixed = facts.outer + together * facts.working + work.sequences * facts.logits + facts.widened
        moving = blocks * weights_move + layer * cache_moves + (RESERVE if self.kind == "cuda" else 0)
        on_gpu = vector(fixed + moving, weights_gpu=weights, cache_gpu=cache, activations_gpu=activations)
        on_gpu += vector(activations_cpu=states, activations_disk=states)
        on_cpu = vector(weights_cpu=weights, cache_cpu=cache, activations_cpu=activations)
        if self.kind == "cuda":  # what is on disk passes through CPU memory
            on_cpu += vector(weights_disk=blocks, cache_disk=layer, activations_disk=states)
        on_disk = vector(weights_disk=weights, cache_disk=cache, activations_disk=activations)
        return {"gpu": on_gpu, "cpu": on_cpu, "disk": on_disk}
