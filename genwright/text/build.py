"""Builds an engine from a checkpoint and an EngineConfig: opens files, divides the memory, loads the weights."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from genwright.errors import UserError
from genwright.kernels.compile_ahead import KernelCompiler
from genwright.kernels.cpu.amx import has_bf16
from genwright.kernels.cpu.calls import runner
from genwright.parallel.pipeline import Pipeline
from genwright.parallel.ranks import Ranks
from genwright.placement.footprint import STEP_TOKENS, Workload
from genwright.placement.machine import Machine
from genwright.placement.model_facts import ModelFacts
from genwright.placement.planner import Budgets, Plan
from genwright.placement.policy import Policy
from genwright.placement.prediction import Prediction, predict
from genwright.quant.formats import Format, parse_format
from genwright.text.cache.layout import CACHE_BITS
from genwright.text.catalogue import resolve
from genwright.text.checkpoints.check_tensors import has_draft
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.checkpoints.protocol import Checkpoint, parse_dtype
from genwright.text.drafts.draft_model import DraftModel
from genwright.text.drafts.mtp import MTP, MtpDraft
from genwright.text.drafts.prompt_lookup import PROMPT_LOOKUP, PromptLookup
from genwright.text.drafts.proposal_length import StepCost
from genwright.text.drafts.speculation import Draft, Speculation
from genwright.text.engine.engine import Engine
from genwright.text.engine.executor import PredictingExecutor
from genwright.text.engine.recorded_steps import RecordingExecutor
from genwright.text.engine.resident_executor import compile_decoding, compile_sampler, resident_executor
from genwright.text.engine.sharded import ShardedEngine
from genwright.text.engine.vocabulary_ranks import VocabularyRanks
from genwright.text.loader import Loader
from genwright.text.memory import (
    MAX_BATCH,
    STEPS_AHEAD,
    USUAL_CONTEXT,
    divide_memory,
    max_batch,
    step_tokens,
)
from genwright.text.ops.backends import choose, new_ops
from genwright.text.ops.cpu_ops import CpuOps
from genwright.text.ops.torch_ops import TorchOps
from genwright.text.placed_model import load_placed
from genwright.text.planning import model_facts, plan_model, warn_of_unused_budget
from genwright.text.settings import AUTO, EngineConfig

PLANNED_ANSWER = 128  # tokens of an answer that a placement is planned for; the rest of the context is the prompt's
KEEP = "keep"  # the quant that leaves packed weights as they are stored
SELF = "self:"  # prefix of a draft that is a copy of the model in another weight format, such as self:int4


def open_model(model: str | Path, config: EngineConfig) -> Checkpoint:
    """Open the model's checkpoint; unknown weight formats raise before anything is downloaded."""
    for quant in (config.quant, _self_draft_format(config)):
        _weight_format(quant)
    return open_checkpoint(resolve(str(model)), config.arch)


def check_parts(checkpoint: Checkpoint, config: EngineConfig) -> None:
    """Raise a UserError if the model or its draft cannot be divided among the ranks, before any of them starts."""
    ranks, parts = config.layout.ranks, config.layout.tp
    for rank in range(0, ranks, parts) if ranks > 1 else ():
        for loader in _loaders(checkpoint, config, torch.device("cpu"), _quiet, rank):
            if (heads := loader.checkpoint.config.heads) % parts:
                raise UserError(
                    f"The {heads} attention heads of {loader.checkpoint.path} cannot be divided among {parts} ranks; "
                    f"choose a tp or ep that divides {heads}."
                )
            loader.total_bytes(draft=config.draft == MTP)


def build_engine(
    checkpoint: Checkpoint,
    config: EngineConfig,
    device: torch.device,
    progress: Callable[[int, int], None],
    ranks: Ranks | None = None,
) -> Engine:
    """Load a checkpoint and its draft, or a rank's part of them, onto a device."""
    if ranks is not None:
        ranks.arrange(config.layout, device)
        config = config.with_settings({"graph": config.graph and ranks.on_device})
    group, inputs = None if ranks is None else ranks.stage, (config.exact_inputs, config.fp8_inputs)
    ops = new_ops(config.backend, device, config.deterministic, group, *inputs)
    loaders = _loaders(checkpoint, config, device, progress, 0 if ranks is None else ranks.rank)
    sharing = (1, True) if ranks is None else (ranks.place.local_ranks, ranks.on_device)
    pages, max_context = divide_memory(loaders, config, device, *sharing)
    if ranks is not None:
        max_context, *least = ranks.least(max_context, *itertools.chain(*pages))
        pages = [[least.pop(0) for _ in each] for each in pages]
    most, max_tokens = max_batch(config, device), step_tokens(config, device)
    contexts = [max_context, *(min(max_context, loader.checkpoint.config.longest_context) for loader in loaders[1:])]
    executor, *drafts = (
        _load(loader, ops, config, context, count, config.policy if loader is loaders[0] else None, ranks)
        for loader, context, count in zip(loaders, contexts, pages, strict=True)
    )
    speculation: Speculation | None = None
    if config.draft is not None:
        proposer: Draft = MtpDraft(executor) if config.draft == MTP else PromptLookup(device)
        if drafts:
            proposer = DraftModel(drafts[0], executor.model, max_tokens, contexts[1])
        step_cost = StepCost.of(executor.model)
        if ranks is not None:  # the ranks must propose alike
            proposer.cost = ranks.broadcast(proposer.cost)
            step_cost = replace(step_cost, second_row=ranks.broadcast(step_cost.second_row))
        speculation = Speculation(proposer, config.speculate_k, step_cost)
    sizes = most, max_tokens, max_context, speculation, STEPS_AHEAD[device.type]
    if ranks is None:
        return Engine(executor, *sizes)
    vocab, columns = executor.model.cfg.vocab_size, executor.model.columns
    return ShardedEngine(ranks, executor, *sizes, VocabularyRanks(ranks.stage, ops.all_gather, vocab, columns))


def _quiet(done: int, total: int) -> None:
    """Show no progress."""


def _loaders(
    checkpoint: Checkpoint,
    config: EngineConfig,
    device: torch.device,
    progress: Callable[[int, int], None],
    rank: int,
) -> list[Loader]:
    """The loaders of a rank's part of the model and of its draft model."""
    loaders = [_loader(checkpoint, config.quant, config, device, progress, rank)]
    if (draft := _open_draft(checkpoint, config)) is not None:
        loaders.append(_loader(draft, _self_draft_format(config), config, device, progress, rank))
    return loaders


def plan_engine(
    checkpoint: Checkpoint, config: EngineConfig, device: torch.device, work: Workload, tell: Callable[[str], None]
) -> tuple[Plan, Budgets, Machine]:
    """The best placement of a model, the budgets, and the machine that it was planned for; nothing is loaded."""
    warn_of_unused_budget(config, device)
    return plan_model(_loader(checkpoint, config.quant, config, device, _quiet), config, work, tell)


@dataclass(frozen=True)
class Planned:
    """A policy that the planner chose, and what it knows of the model and the machine."""

    policy: Policy
    machine: Machine
    facts: ModelFacts

    def predict(self, work: Workload) -> Prediction:
        return predict(self.facts, self.machine, self.policy, work)


def settle_offload(
    checkpoint: Checkpoint, config: EngineConfig, device: torch.device, tell: Callable[[str], None]
) -> tuple[EngineConfig, Planned | None]:
    """Replace `offload="auto"` by the planner's policy, or by None if the model fits on the device."""
    warn_of_unused_budget(config, device)
    if config.offload != AUTO:
        return config, None
    longest = config.max_context or min(USUAL_CONTEXT, checkpoint.config.max_context)
    resident = config.with_settings({"offload": None})
    if _fits(checkpoint, resident.with_settings({"max_context": longest}), device):
        tell("The model fits: it runs resident.")
        return resident, None
    answer = min(PLANNED_ANSWER, longest // 2) or 1
    work = Workload(max(1, longest - answer), answer, MAX_BATCH[device.type])
    loader = _loader(checkpoint, config.quant, config, device, _quiet)
    plan, _, machine = plan_model(loader, config, work, tell)
    tell(f"Placement: {plan.policy.describe('GPU' if machine.has_gpu else 'memory')}")
    planned = Planned(plan.policy, machine, model_facts(loader, config.kv))
    # Larger steps would need more memory than was planned for.
    tokens = min(plan.policy.batch * work.prompt_length, STEP_TOKENS[device.type])
    steps = {"max_step_tokens": config.max_step_tokens or tokens}
    return config.with_settings({"offload": plan.policy, **steps}), planned


def _fits(checkpoint: Checkpoint, config: EngineConfig, device: torch.device) -> bool:
    """Whether the device has room for the weights and a sequence of the longest context."""
    try:
        loaders = _loaders(checkpoint, config, device, _quiet, 0)
        divide_memory(loaders, config, device, config.layout.ranks, device.type == "cuda")
    except UserError:
        return False
    return True


def _open_draft(model: Checkpoint, config: EngineConfig) -> Checkpoint | None:
    """The checkpoint of the draft model; None if there is no draft or if it is not a model."""
    if config.draft == MTP and not has_draft(model):
        raise UserError(
            "The draft 'mtp' needs a multi-token-prediction layer, as in DeepSeek-V3, but this checkpoint has none; "
            "'prompt-lookup' works for every model."
        )
    if config.draft in (None, PROMPT_LOOKUP, MTP):
        return None
    if _self_draft_format(config) is not None:
        return model
    checkpoint = open_checkpoint(resolve(str(config.draft)))
    theirs, ours = checkpoint.config.vocab_size, model.config.vocab_size
    if theirs != ours:
        raise UserError(
            f"The draft model {config.draft} has a vocabulary of {theirs} tokens, but the model has {ours}; a draft "
            "must have the model's tokenizer."
        )
    return checkpoint


def _self_draft_format(config: EngineConfig) -> str | None:
    """The weight format of a draft that is a copy of the model; None for other drafts."""
    return config.draft.removeprefix(SELF) if config.draft is not None and config.draft.startswith(SELF) else None


def _weight_format(quant: str | None) -> Format | None:
    return None if quant in (None, KEEP) else parse_format(str(quant))


def _loader(
    checkpoint: Checkpoint,
    quant: str | None,
    config: EngineConfig,
    device: torch.device,
    progress: Callable[[int, int], None],
    rank: int = 0,
) -> Loader:
    dtype = _pick_dtype(config.dtype, device, checkpoint)
    backend = choose(config.backend, device)
    tiled = backend == "cpu" and device.type == "cpu" and runner() is not None
    packed = quant == KEEP or checkpoint.stays_packed or tiled or backend == "triton"
    layout, layers = config.layout, checkpoint.config.layers
    if layers < layout.pp:
        raise UserError(f"{checkpoint.path} has {layers} layers, which are too few for {layout.pp} stages.")
    part = rank % layout.tp, layout.tp, layout.expert_parallel, layout.layers(rank, layers) if layout.pp > 1 else None
    return Loader(checkpoint, dtype, device, packed, tiled, _weight_format(quant), progress, *part)


def _pick_dtype(name: str, device: torch.device, checkpoint: Checkpoint) -> torch.dtype:
    """`auto` is the stored type; a CPU that is slow in it uses bfloat16 if it has bf16 instructions, else float32."""
    if name != "auto":
        return parse_dtype(name)
    stored: torch.dtype = getattr(torch, checkpoint.config.dtype)
    if device.type != "cpu" or stored == torch.float32:
        return stored
    return torch.bfloat16 if has_bf16() else torch.float32


def _load(
    loader: Loader,
    ops: TorchOps,
    config: EngineConfig,
    context: int,
    pages: Sequence[int],
    policy: Policy | None,
    ranks: Ranks | None,
) -> PredictingExecutor:
    """Load a model and make its executor, with CUDA graphs or recorded steps where its ops allow it."""
    bits, most = CACHE_BITS[config.kv], max_batch(config, loader.device)
    max_tokens = step_tokens(config, loader.device)
    pipeline = Pipeline(ranks) if ranks is not None and ranks.layout.pp > 1 else None
    if policy is not None:
        return load_placed(loader, ops, config, context, pages, policy, pipeline)
    compiler = KernelCompiler()
    compile_sampler(compiler, ops, loader.checkpoint.config.vocab_size, loader.dtype, loader.device)
    model = loader.model(context, watch=partial(compile_decoding, compiler, ops, most, max_tokens, bits))
    mtp = loader.block(model.cfg.layers) if config.draft == MTP else None
    sizes = pages[0], most, max_tokens
    if isinstance(ops, CpuOps) and ranks is None and config.graph:
        return RecordingExecutor(model, ops, *sizes, mtp, bits)
    return resident_executor(model, ops, *sizes, config.graph, mtp, bits, pipeline, compiler)
