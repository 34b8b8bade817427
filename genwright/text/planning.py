"""Facts about a model for the planner, and a plan for a checkpoint on this machine."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from math import prod

import torch

from genwright.device import free_memory
from genwright.errors import GenwrightWarning, UserError
from genwright.placement.footprint import Workload
from genwright.placement.machine import Machine, this_machine
from genwright.placement.model_facts import ModelFacts
from genwright.placement.offload_folder import free_space
from genwright.placement.planner import Budgets, Plan, plan
from genwright.text.architectures.weight_map import Sources
from genwright.text.cache.layout import CACHE_BITS
from genwright.text.config import ModelConfig
from genwright.text.loader import EXPERTS, Loader
from genwright.text.settings import EngineConfig

DISK = 0.9  # of the free space of a disk that may be used


def plan_model(
    loader: Loader, config: EngineConfig, work: Workload, tell: Callable[[str], None] = lambda sentence: None
) -> tuple[Plan, Budgets, Machine]:
    """The best placement on this machine of the model that a loader would load, and what it was planned for."""
    longest = loader.checkpoint.config.longest_context
    if work.longest > longest:
        raise UserError(
            f"A prompt of {work.prompt_length:,} tokens and {work.max_new_tokens:,} new ones need a context of "
            f"{work.longest:,}, but the model's is {longest:,}."
        )
    given = budgets(config, loader.device)
    machine = this_machine(loader.device, loader.dtype, config.offload_folder, tell)
    return plan(model_facts(loader, config.kv), machine, given, work), given, machine


def warn_of_unused_budget(config: EngineConfig, device: torch.device) -> None:
    if device.type == "cpu" and config.gpu_mem is not None:
        warnings.warn(
            "gpu_mem has no effect without a GPU; cpu_mem limits main memory.", GenwrightWarning, stacklevel=2
        )


def budgets(config: EngineConfig, device: torch.device) -> Budgets:
    """The bytes that may be used: as set, or most of what is free."""
    host = torch.device("cpu")
    gpu, cpu = (
        free_memory(where) if (given := config.budget(where.type)) is None else given for where in (device, host)
    )
    return Budgets(gpu if device.type == "cuda" else 0, cpu, int(free_space(config.offload_folder) * DISK))


def model_facts(loader: Loader, kv: str) -> ModelFacts:
    """The facts of the model that a loader would load, with a cache in the format `kv`."""
    cfg, layers, spec = loader.checkpoint.config, loader.own_layers, loader.cache_spec(CACHE_BITS[kv])
    blocks = [loader.weights.block(layer) for layer in layers]
    sizes = [loader.bytes(block) for block in blocks]
    experts = [{name: block[name] for name in block if name.startswith(EXPERTS)} for block in blocks]
    expert_parameters = sum(map(_parameters, experts))
    outer, itemsize = loader.outer_sources(), loader.dtype.itemsize
    return ModelFacts(
        layers=len(layers),
        itemsize=itemsize,
        outer=loader.bytes(outer),
        block=sum(sizes) / len(layers),
        largest_block=max(sizes),
        widened=max(_widened(loader, name, sources) for name, sources in blocks[-1].items()),
        parameters=(sum(map(_parameters, blocks)) - expert_parameters) / len(layers),
        head=_parameters({"head": outer.get("head", outer.get("embed", ()))}),
        hidden=cfg.dim * itemsize,
        working=_working(cfg) * itemsize,
        logits=cfg.vocab_size * (itemsize + 4),  # as computed, and in float32
        cache_row=spec.row_bytes,
        windows=cfg.windows,
        attention=2 * cfg.heads * _attention_width(cfg),
        expert_bytes=sum(map(loader.bytes, experts)) / len(layers),
        expert_parameters=expert_parameters / len(layers),
        experts=cfg.moe.experts if cfg.moe else 1,
        top_k=cfg.moe.top_k if cfg.moe else 1,
    )


def _parameters(block: Mapping[str, Sources]) -> int:
    """The number of elements of all matrices."""
    return sum(prod(source.shape) for sources in block.values() for source in sources if len(source.shape) == 2)


def _widened(loader: Loader, name: str, sources: Sources) -> int:
    """Bytes of a packed weight once it is dequantized, of stacked experts for one expert; 0 if it is not packed."""
    count = len({source.expert for source in sources})
    return 0 if loader.forms(name, sources) is None else _parameters({name: sources}) * loader.dtype.itemsize // count


def _attention_width(cfg: ModelConfig) -> int:
    """Multiplications of a head for each cached token: one per channel of its key and one per channel of its value."""
    if cfg.mla is not None:
        return 2 * cfg.mla.kv_lora_rank + cfg.mla.qk_rope_head_dim
    return 2 * cfg.head_dim


def _working(cfg: ModelConfig) -> int:
    """Elements of a token at the widest point of a block: hidden states, their norms, and the largest intermediate."""
    return 6 * cfg.dim + max(_widths(cfg))


def _widths(cfg: ModelConfig) -> Iterator[int]:
    gated = 1 if cfg.opt is not None else 2
    yield 2 * cfg.q_dim + 2 * cfg.kv_dim
    yield (gated + 1) * cfg.ffn_dim
    if cfg.mla is not None:  # queries in the latent's space, and the latent's mixture
        yield cfg.heads * (2 * cfg.mla.kv_lora_rank + cfg.mla.qk_rope_head_dim) + cfg.q_dim
    if cfg.moe is not None:
        yield cfg.moe.top_k * (3 * cfg.moe.ffn_dim + 2 * cfg.dim) + 3 * cfg.moe.shared_dim
