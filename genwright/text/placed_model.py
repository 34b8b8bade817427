"""Loads a model into the tiers of a policy."""

import itertools
from collections.abc import Sequence
from contextlib import ExitStack, closing

import torch

from genwright.parallel.pipeline import Pipeline
from genwright.placement.offload_folder import OffloadFolder
from genwright.placement.policy import Policy
from genwright.placement.tiers import Tiers
from genwright.placement.weights import PlacedBlock
from genwright.text.cache.layout import CACHE_BITS
from genwright.text.drafts.mtp import MTP
from genwright.text.engine.streamed import StreamedExecutor
from genwright.text.loader import Loader
from genwright.text.memory import cache_spec, max_batch, step_tokens
from genwright.text.ops.torch_ops import TorchOps
from genwright.text.settings import EngineConfig


def load_placed(
    loader: Loader,
    ops: TorchOps,
    config: EngineConfig,
    context: int,
    pages: Sequence[int],  # of the cache in each tier
    policy: Policy,
    pipeline: Pipeline | None,
) -> StreamedExecutor:
    """Load a model and make its executor; what was opened is closed if that fails."""
    count, moe = itertools.count(), loader.checkpoint.config.moe
    experts = 0 if moe is None else moe.experts // (loader.ranks if loader.expert_parallel else 1)
    with ExitStack() as opened:
        tiers = opened.enter_context(closing(_open_tiers(loader, policy, config, pages[-1])))
        model = loader.model(context, lambda block: PlacedBlock(block, policy, tiers, f"block-{next(count)}", experts))
        mtp = loader.block(model.cfg.layers) if config.draft == MTP else None
        if loader.device.type == "cuda":
            torch.cuda.empty_cache()  # what loading used
        bits, sizes = CACHE_BITS[config.kv], (max_batch(config, loader.device), step_tokens(config, loader.device))
        executor = StreamedExecutor(model, ops, pages, *sizes, policy, tiers, mtp, bits, pipeline)
        opened.pop_all()  # the executor closes them
        return executor


def _open_tiers(loader: Loader, policy: Policy, config: EngineConfig, cache_pages: int) -> Tiers:
    """A disk that is too small is refused before anything is loaded."""
    cfg = loader.checkpoint.config
    blocks = sum(map(loader.block_bytes, loader.own_layers))
    states = step_tokens(config, loader.device) * cfg.dim * loader.dtype.itemsize
    needed = (blocks * policy.shares("weights")[2] + states * policy.shares("activations")[2]) // 100
    needed += cache_pages * cache_spec(loader, config).page_bytes
    folder = OffloadFolder(config.offload_folder, needed) if needed else None
    return Tiers(loader.device, policy.pin, folder, config.budget("cuda"))
