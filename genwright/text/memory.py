"""Divides the memory of a device and of the other tiers: weights, what a step computes, the rest for cache pages."""

import torch

from genwright.device import free_memory
from genwright.errors import UserError
from genwright.placement.footprint import STEP_TOKENS, Workload
from genwright.placement.offload_folder import check_space
from genwright.placement.policy import Policy
from genwright.placement.prediction import tier_parts
from genwright.text.cache.budget import cache_pages, tiered_cache_pages
from genwright.text.cache.layout import CACHE_BITS, CacheSpec
from genwright.text.drafts.mtp import MTP
from genwright.text.loader import Loader
from genwright.text.planning import model_facts
from genwright.text.settings import EngineConfig

MAX_BATCH = {"cpu": 64, "cuda": 256}  # sequences in a step
MAX_STEP_TOKENS = {"cpu": 512, "cuda": 2048}  # tokens in a step; longer prompts are computed in chunks
USUAL_CONTEXT = 2048  # tokens of a sequence, if there is no max_context
STEPS_AHEAD = {"cpu": 0, "cuda": 1}  # steps launched before the host has read the tokens of the one before
DRAFT_SHARE = 10  # percent of the cache memory that a draft model gets, if the model's own cache is in another tier


def divide_memory(
    loaders: list[Loader], config: EngineConfig, device: torch.device, local_ranks: int, own_device: bool
) -> tuple[list[list[int]], int]:
    """The cache pages of the model and its draft model in each tier, and the longest context that they hold.

    Ranks of one machine share its memory, and a GPU's unless each has its `own_device`.
    """
    cfg, specs = loaders[0].checkpoint.config, [cache_spec(loader, config) for loader in loaders]
    weights = sum(loader.total_bytes(draft=config.draft == MTP) for loader in loaders)
    given = config.budget(device.type)
    budget = free_memory(device) // (1 if own_device else local_ranks) if given is None else given
    in_flight, most = step_tokens(config, device) * (1 + STEPS_AHEAD[device.type]), max_batch(config, device)
    if config.policy is None:
        pages, longest = cache_pages(specs, in_flight, cfg, config.max_context, weights, budget, most)
        return [[count] for count in pages], longest
    weights += _streaming_bytes(loaders[0], config, device) - _moved_off(loaders[0], config.policy, device)
    shares = config.policy.shares("cache")
    rooms = _other_rooms(loaders[0], config, device, local_ranks)
    if device.type == "cpu":  # the tiers GPU and CPU are parts of the same memory
        ours = max(shares[0], DRAFT_SHARE)
        rooms[0] = max(0, budget - weights) * shares[1] // (ours + shares[1])
        budget -= rooms[0]
    return tiered_cache_pages(specs, shares, in_flight, cfg, config.max_context, weights, budget, rooms, most)


def cache_spec(loader: Loader, config: EngineConfig) -> CacheSpec:
    spec = loader.cache_spec(CACHE_BITS[config.kv])
    return spec.with_draft() if config.draft == MTP else spec


def _other_rooms(loader: Loader, config: EngineConfig, device: torch.device, ranks: int) -> list[int]:
    """Bytes for the cache in CPU memory and on disk, beside the weights there."""
    assert config.policy is not None
    given = config.budget("cpu")
    memory = free_memory(torch.device("cpu")) // ranks if given is None else given
    parts = _parts(loader, config, device)
    on_cpu, on_disk = (sum(parts[tier].values()) - parts[tier]["cache"] for tier in ("cpu", "disk"))
    if device.type == "cuda" and on_cpu > memory:
        raise UserError(
            f"What is placed in CPU memory takes {on_cpu / 1e9:.2f} GB without the cache, but only {memory / 1e9:.2f} "
            "GB may be used; place more on the GPU or on disk."
        )
    left = check_space(config.offload_folder, on_disk * ranks)
    # Half of the disk, because the space is reserved even if few sequences come.
    return [max(0, memory - on_cpu), left // ranks // 2]


def _moved_off(loader: Loader, policy: Policy, device: torch.device) -> int:
    """Bytes of the model's weights that the policy keeps out of the device's memory."""
    kept = policy.weights_gpu + (policy.weights_cpu if device.type == "cpu" else 0)
    return sum(loader.block_bytes(layer) * (100 - kept) // 100 for layer in loader.own_layers)


def _streaming_bytes(loader: Loader, config: EngineConfig, device: torch.device) -> int:
    """Bytes on the device for staged blocks and cache pages, hidden states and the temporaries of a micro-batch."""
    parts = _parts(loader, config, device)
    tiers = ("gpu", "cpu") if device.type == "cpu" else ("gpu",)
    return sum(parts[tier][what] for tier in tiers for what in ("activations", "buffers"))


def _parts(loader: Loader, config: EngineConfig, device: torch.device) -> dict[str, dict[str, int]]:
    """Bytes of a placed model in each tier, by what they hold."""
    assert config.policy is not None
    longest = config.max_context or min(loader.checkpoint.config.max_context, USUAL_CONTEXT)
    work = Workload(longest, 0, max_batch(config, device))
    facts, tokens = model_facts(loader, config.kv), step_tokens(config, device)
    return tier_parts(facts, device.type, config.policy, work, tokens)


def max_batch(config: EngineConfig, device: torch.device) -> int:
    policy = config.policy
    return policy.batch if policy is not None and policy.batch else MAX_BATCH[device.type]


def step_tokens(config: EngineConfig, device: torch.device) -> int:
    default = MAX_STEP_TOKENS if config.policy is None else STEP_TOKENS
    return config.max_step_tokens or default[device.type]
