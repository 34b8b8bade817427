"""gpt-fast's tensor parallelism under torchrun: each rank has a part of the heads and of the MLPs."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from genwright.dropin.transformer.modules import Attention, Transformer
from genwright.errors import UserError

__all__ = ["apply_tp", "is_local", "maybe_init_dist"]


def _get_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def _get_world_size() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def is_local() -> bool:
    return _get_rank() == 0


def launched_ranks() -> tuple[int, int]:
    """This process's rank, and how many of them torchrun started."""
    return _get_rank(), _get_world_size()


def maybe_init_dist() -> int | None:
    """Join the other ranks if torchrun started several: over NCCL with a GPU for each, else over gloo."""
    rank, world_size = launched_ranks()
    if world_size < 2:
        return None
    on_gpus = torch.cuda.device_count() >= world_size
    if on_gpus:
        torch.cuda.set_device(rank)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if on_gpus else "gloo", rank=rank, world_size=world_size)
    return rank


def apply_tp(model: Transformer) -> None:
    """Keep this rank's part of every layer; the ops of the layers then sum over ranks."""
    ranks, config = _get_world_size(), model.config
    for name in ("n_head", "n_local_heads", "dim"):
        if getattr(config, name) % ranks:
            raise UserError(f"{name}, {getattr(config, name)}, cannot be divided by {ranks} ranks.")
        setattr(config, name, getattr(config, name) // ranks)
    block: Any
    for block in model.layers:
        _split_attention(block.attention)
        if model.model_config.moe is None:
            for module in (block.feed_forward.w1, block.feed_forward.w3):
                _keep(module, 0, [module.out_features])
            _keep(block.feed_forward.w2, 1, [block.feed_forward.w2.in_features])
        else:
            _split_experts(block.block_sparse_moe.cond_ffn)
        block.ops.ranks = dist.group.WORLD


def _split_attention(attention: Attention) -> None:
    ranks, kv_dim = _get_world_size(), attention.n_local_heads * attention.head_dim
    _keep(attention.wqkv, 0, [attention.dim, kv_dim, kv_dim])
    _keep(attention.wo, 1, [attention.dim])
    attention.n_head //= ranks
    attention.n_local_heads //= ranks
    attention.dim //= ranks


def _split_experts(experts: Any) -> None:
    for name, axis in (("w1", 1), ("w3", 1), ("w2", 2), ("scales1", 1), ("scales3", 1)):
        if hasattr(experts, name):
            tensor = getattr(experts, name)
            _set(experts, name, _part(tensor, axis, [tensor.shape[axis]]))


def _keep(linear: Any, axis: int, parts: list[int]) -> None:
    """Cut a linear's matrix along outputs (0) or inputs (1), each of its fused parts for itself."""
    tiled = linear.weight.dim() == 4  # int4: tiles of 8 outputs
    _set(linear, "weight", _part(linear.weight, axis, [part // 8 for part in parts] if tiled and axis == 0 else parts))
    if tiled:
        _set(linear, "scales_and_zeros", _part(linear.scales_and_zeros, 1 - axis, parts))
    elif hasattr(linear, "scales") and axis == 0:
        _set(linear, "scales", _part(linear.scales, 0, parts))
    size = ("out_features", "in_features")[axis]
    setattr(linear, size, getattr(linear, size) // _get_world_size())


def _part(tensor: Tensor, axis: int, parts: list[int]) -> Tensor:
    """This rank's share of each of the parts that lie one after the other along an axis."""
    whole = sum(parts)
    size = tensor.shape[axis]
    pieces = []
    for piece in tensor.split([part * size // whole for part in parts], dim=axis):
        if piece.shape[axis] % _get_world_size():
            raise UserError(f"A matrix of {tuple(tensor.shape)} cannot be divided by {_get_world_size()} ranks.")
        pieces.append(piece.tensor_split(_get_world_size(), dim=axis)[_get_rank()])
    return torch.cat(pieces, dim=axis)


def _set(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Replace a parameter or a buffer."""
    parameter = name in dict(module.named_parameters(recurse=False))
    setattr(module, name, nn.Parameter(tensor, requires_grad=False) if parameter else tensor)
