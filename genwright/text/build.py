"""Builds an engine from a checkpoint and an EngineConfig: opens files, divides the memory, loads the weights."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from genwright.device import free_memory
from genwright.errors import GenwrightWarning, UserError
from genwright.kernels.cpu.amx import has_bf16
from genwright.parallel.pipeline import Pipeline
from genwright.parallel.ranks import Ranks
from genwright.quant.formats import Format, parse_format
from genwright.text.cache.budget import cache_pages
from genwright.text.cache.layout import CACHE_BITS
from genwright.text.catalogue import resolve
from genwright.text.checkpoints.check_tensors import has_draft
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.checkpoints.protocol import Checkpoint, parse_dtype
from genwright.text.drafts.draft_model import DraftModel
from genwright.text.drafts.mtp import MTP, MtpDraft
from genwright.text.drafts.prompt_lookup import PROMPT_LOOKUP, PromptLookup
from genwright.text.drafts.speculation import Draft, Speculation, verification_costs
from genwright.text.engine.engine import Engine
from genwright.text.engine.executor import ResidentExecutor
from genwright.text.engine.sharded import ShardedEngine
from genwright.text.engine.vocabulary_ranks import VocabularyRanks
from genwright.text.loader import Loader, cache_spec
from genwright.text.ops.backends import new_ops
from genwright.text.ops.torch_ops import TorchOps
from genwright.text.settings import EngineConfig

MAX_BATCH = {"cpu": 64, "cuda": 256}  # sequences in a step
MAX_STEP_TOKENS = {"cpu": 512, "cuda": 2048}  # tokens in a step; longer prompts are computed in chunks
STEPS_AHEAD = {"cpu": 0, "cuda": 1}  # steps launched before the host has read the tokens of the one before
KEEP = "keep"  # the quant that leaves packed weights as they are stored
SELF = "self:"  # prefix of a draft that is a copy of the model in another weight format, such as self:int4


def open_model(model: str | Path, config: EngineConfig) -> Checkpoint:
    """Open the model's checkpoint; unknown weight formats raise before anything is downloaded."""
    for quant in (config.quant, _self_draft_format(config)):
        _weight_format(quant)
    return open_checkpoint(resolve(str(model)), config.arch)


def check_parts(checkpoint: Checkpoint, config: EngineConfig) -> None:
    """Raise a UserError if the model or its draft cannot be divided among the ranks, before any of them starts."""
    if config.layout.ranks > 1:
        for rank in range(0, config.layout.ranks, config.layout.tp):
            for loader in _loaders(checkpoint, config, torch.device("cpu"), lambda done, total: None, rank):
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
        config = replace(config, graph=config.graph and (ranks.on_device or device.type == "cpu"))
    ops = new_ops(config.backend, device, config.deterministic, None if ranks is None else ranks.stage)
    loaders = _loaders(checkpoint, config, device, progress, 0 if ranks is None else ranks.rank)
    pages, max_context = _divide_memory(loaders, config, device, ranks)
    max_batch, max_tokens = MAX_BATCH[device.type], _step_tokens(config, device)
    contexts = [max_context, *(min(max_context, loader.checkpoint.config.longest_context) for loader in loaders[1:])]
    executor, *drafts = (
        _load(loader, ops, config, context, count, ranks)
        for loader, context, count in zip(loaders, contexts, pages, strict=True)
    )
    speculation: Speculation | None = None
    if drafts:
        proposer: Draft = DraftModel(drafts[0], executor.model, max_tokens, contexts[1])
    elif config.draft is not None:
        proposer = MtpDraft(executor) if config.draft == MTP else PromptLookup(device)
    if config.draft is not None:
        if ranks is not None:
            proposer.cost = ranks.broadcast(proposer.cost)  # the ranks must propose alike
        speculation = Speculation(proposer, config.speculate_k, *verification_costs(device))
    sizes = max_batch, max_tokens, max_context, speculation, STEPS_AHEAD[device.type]
    if ranks is None:
        return Engine(executor, *sizes)
    model = executor.model
    vocabulary = VocabularyRanks(ranks.stage, ops.all_gather, model.cfg.vocab_size, model.columns)
    return ShardedEngine(ranks, executor, *sizes, vocabulary)


def _loaders(
    checkpoint: Checkpoint,
    config: EngineConfig,
    device: torch.device,
    progress: Callable[[int, int], None],
    rank: int,
) -> list[Loader]:
    """The loaders of a rank's part of the model and of its draft model."""
    loaders = [_loader(checkpoint, config.quant, config, device, progress)]
    if (draft := _open_draft(checkpoint, config)) is not None:
        loaders.append(_loader(draft, _self_draft_format(config), config, device, progress))
    layout = config.layout
    for loader in loaders:
        layers = loader.checkpoint.config.layers
        if layers < layout.pp:
            raise UserError(f"{loader.checkpoint.path} has {layers} layers, which are too few for {layout.pp} stages.")
        loader.rank, loader.ranks, loader.expert_parallel = rank % layout.tp, layout.tp, layout.expert_parallel
        loader.layers = layout.layers(rank, layers) if layout.pp > 1 else None
    return loaders


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
) -> Loader:
    dtype = _pick_dtype(config.dtype, device, checkpoint)
    if quant == KEEP and checkpoint.only_widened:
        kinds, name = " and ".join(checkpoint.only_widened), str(dtype).removeprefix("torch.")
        warnings.warn(
            f"{checkpoint.path} has weights in {kinds}, which cannot be kept packed yet; they are unpacked to {name}, "
            "which takes more memory. Pass quant int8 or int4 to pack them again.",
            GenwrightWarning,
            stacklevel=4,
        )
    packed = quant == KEEP or checkpoint.stays_packed
    return Loader(checkpoint, dtype, device, packed, _weight_format(quant), progress)


def _pick_dtype(name: str, device: torch.device, checkpoint: Checkpoint) -> torch.dtype:
    """`auto` is the stored type, but float32 on a CPU without bf16 instructions, where it is faster."""
    if name == "auto":
        stored: torch.dtype = getattr(torch, checkpoint.config.dtype)
        return torch.float32 if device.type == "cpu" and not has_bf16() else stored
    return parse_dtype(name)


def _divide_memory(
    loaders: list[Loader], config: EngineConfig, device: torch.device, ranks: Ranks | None
) -> tuple[list[int], int]:
    """The number of cache pages of the model and its draft model, and the longest context that they hold."""
    mtp, bits = config.draft == MTP, CACHE_BITS[config.kv]
    configs = [loader.checkpoint.config for loader in loaders]
    specs = [
        cache_spec(cfg, loader.dtype, bits, loader.ranks, loader.layers)
        for cfg, loader in zip(configs, loaders, strict=True)
    ]
    weights = sum(loader.total_bytes(draft=mtp) for loader in loaders)
    given = config.cpu_mem if device.type == "cpu" else config.gpu_mem
    free = free_memory(device)
    if ranks is not None and not ranks.on_device:
        free //= ranks.place.local_ranks  # they share a machine's memory, or a GPU's
    pages, max_context = cache_pages(
        [spec.with_draft() if mtp else spec for spec in specs],
        _step_tokens(config, device) * (1 + STEPS_AHEAD[device.type]),
        configs[0],
        config.max_context,
        weights,
        free if given is None else int(given * 1e9),
        MAX_BATCH[device.type],
    )
    if ranks is not None:
        *pages, max_context = ranks.least(*pages, max_context)
    return pages, max_context


def _step_tokens(config: EngineConfig, device: torch.device) -> int:
    return config.max_step_tokens or MAX_STEP_TOKENS[device.type]


def _load(
    loader: Loader, ops: TorchOps, config: EngineConfig, context: int, pages: int, ranks: Ranks | None
) -> ResidentExecutor:
    """Load a model and make its executor, with CUDA graphs if its ops can be captured."""
    model, kind = loader.model(context), loader.device.type
    mtp = loader.block(model.cfg.layers) if config.draft == MTP else None
    bits, max_batch, max_tokens = CACHE_BITS[config.kv], MAX_BATCH[kind], _step_tokens(config, loader.device)
    pipeline = Pipeline(ranks) if ranks is not None and ranks.layout.pp > 1 else None
    if not ops.capturable:
        return ResidentExecutor(model, ops, pages, max_batch, max_tokens, mtp, bits, pipeline)
    from genwright.text.engine.cuda_graphs import GraphExecutor
    from genwright.text.ops.triton_ops import TritonOps

    assert isinstance(ops, TritonOps)
    most = ops.max_graph_tokens(model.cfg, model.blocks) if config.graph else 0
    return GraphExecutor(model, ops, pages, max_batch, max_tokens, mtp, bits, pipeline, most)
