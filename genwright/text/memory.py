"""Divides the memory of a device and of the other tiers: weights, what a step computes, the rest for cache pages."""

from pathlib import Path

import torch

from genwright.device import free_memory
from genwright.errors import UserError
from genwright.kernels import PAGE
from genwright.placement.cost import CACHE_BUFFERS, RESERVE, STEP_TOKENS
from genwright.placement.offload_folder import free_space
from genwright.placement.policy import Policy
from genwright.text.architectures.registry import architecture
from genwright.text.cache.budget import cache_pages, tiered_cache_pages
from genwright.text.cache.layout import CACHE_BITS, CacheSpec
from genwright.text.drafts.mtp import MTP
from genwright.text.engine.streamed import micro_batch_tokens
from genwright.text.loader import Loader
from genwright.text.planning import model_facts
from genwright.text.settings import EngineConfig

MAX_BATCH = {"cpu": 64, "cuda": 256}  # sequences in a step
MAX_STEP_TOKENS = {"cpu": 512, "cuda": 2048}  # tokens in a step; longer prompts are computed in chunks
USUAL_CONTEXT = 2048  # tokens of a sequence, if there is no max_context
STEPS_AHEAD = {"cpu": 0, "cuda": 1}  # steps launched before the host has read the tokens of the one before
DRAFT_SHARE = 10  # percent of the memory for caches that stays for a draft's, if the model's cache is elsewhere


def divide_memory(loaders: list[Loader], config: EngineConfig, device: torch.device) -> tuple[list[list[int]], int]:
    """The cache pages of the model and its draft model in each tier, and the longest context that they hold."""
    cfg, specs = loaders[0].checkpoint.config, [cache_spec(loader, config) for loader in loaders]
    weights = sum(loader.total_bytes(draft=config.draft == MTP) for loader in loaders)
    given = config.budget(device.type)
    budget = free_memory(device) if given is None else given
    in_flight, most = step_tokens(config, device) * (1 + STEPS_AHEAD[device.type]), max_batch(config, device)
    if config.policy is None:
        pages, longest = cache_pages(specs, in_flight, cfg, config.max_context, weights, budget, most)
        return [[count] for count in pages], longest
    weights += _streaming_bytes(loaders[0], config, device) - _moved_off(loaders[0], config.policy, device)
    shares = config.policy.shares("cache")
    rooms = _other_rooms(loaders[0], config, device)
    if device.type == "cpu":  # the tiers GPU and CPU are parts of the same memory
        ours = max(shares[0], DRAFT_SHARE)
        rooms[0] = max(0, budget - weights) * shares[1] // (ours + shares[1])
        budget -= rooms[0]
    return tiered_cache_pages(specs, shares, in_flight, cfg, config.max_context, weights, budget, rooms, most)


def cache_spec(loader: Loader, config: EngineConfig) -> CacheSpec:
    cfg = loader.checkpoint.config
    spec = CacheSpec(architecture(cfg).cache_layers(cfg), loader.dtype, CACHE_BITS[config.kv])
    return spec.with_draft() if config.draft == MTP else spec


def _other_rooms(loader: Loader, config: EngineConfig, device: torch.device) -> list[int]:
    """Bytes for the cache in CPU memory and on disk, beside the weights there."""
    assert config.policy is not None
    blocks = sum(loader.block_bytes(layer) for layer in range(loader.checkpoint.config.layers))
    given = config.budget("cpu")
    memory = free_memory(torch.device("cpu")) if given is None else given
    _, on_cpu, on_disk = (blocks * share // 100 for share in config.policy.shares("weights"))
    states = _tokens(loader, config, device) * loader.checkpoint.config.dim * loader.dtype.itemsize
    on_cpu += states * config.policy.activations_cpu // 100
    if device.type == "cuda" and on_cpu > memory:
        raise UserError(
            f"The weights and states in CPU memory take {on_cpu / 1e9:.2f} GB, but only {memory / 1e9:.2f} GB may be "
            "used; place more of them on the GPU or on disk."
        )
    # Half of the disk, because the space is reserved even if few sequences come.
    return [max(0, memory - on_cpu), max(0, free_space(offload_dir(config)) - on_disk) // 2]


def offload_dir(config: EngineConfig) -> Path | None:
    return None if config.offload_dir is None else Path(config.offload_dir)


def _moved_off(loader: Loader, policy: Policy, device: torch.device) -> int:
    """Bytes of a model's weights that are in other memory than the cache."""
    kept = policy.weights_gpu + (policy.weights_cpu if device.type == "cpu" else 0)
    layers = range(loader.checkpoint.config.layers)
    return sum(loader.block_bytes(layer) * (100 - kept) // 100 for layer in layers)


def _streaming_bytes(loader: Loader, config: EngineConfig, device: torch.device) -> int:
    """Bytes of the device for blocks and cache pages on their way, hidden states, and what a micro-batch computes."""
    policy, facts = config.policy, model_facts(loader, config.kv)
    assert policy is not None
    buffers = 2 if policy.overlap else 1
    elsewhere = facts.largest_block * (100 - policy.weights_gpu) / 100
    staged = min(facts.largest_block, elsewhere + facts.largest_weight + facts.largest_experts) if elsewhere else 0
    tokens = _tokens(loader, config, device)
    together = micro_batch_tokens(policy, tokens, device)
    kept = policy.activations_gpu + (policy.activations_cpu if device.type == "cpu" else 0)
    states = tokens * kept / 100 + (buffers * together if policy.activations_gpu < 100 else 0)
    computed = together * facts.working + max_batch(config, device) * facts.logits + facts.widened
    pages = _staged_pages(loader, config) if policy.cache_gpu < 100 else 0
    return int(buffers * staged + states * facts.hidden + computed + pages + (RESERVE if device.type == "cuda" else 0))


def _staged_pages(loader: Loader, config: EngineConfig) -> int:
    """Bytes of one layer's pages of some micro-batches."""
    spec, policy = cache_spec(loader, config), config.policy
    assert policy is not None
    sequences = policy.micro_batch or max_batch(config, loader.device)
    return int(CACHE_BUFFERS * sequences * -(-_longest(loader, config) // PAGE) * PAGE * spec.row_bytes)


def _longest(loader: Loader, config: EngineConfig) -> int:
    """Tokens of a sequence to leave room for."""
    return config.max_context or min(loader.checkpoint.config.max_context, USUAL_CONTEXT)


def _tokens(loader: Loader, config: EngineConfig, device: torch.device) -> int:
    """The most tokens of a step."""
    return min(step_tokens(config, device), max_batch(config, device) * _longest(loader, config))


def max_batch(config: EngineConfig, device: torch.device) -> int:
    policy = config.policy
    return policy.batch if policy is not None and policy.batch else MAX_BATCH[device.type]


def step_tokens(config: EngineConfig, device: torch.device) -> int:
    default = MAX_STEP_TOKENS if config.policy is None else STEP_TOKENS
    return config.max_step_tokens or default[device.type]
