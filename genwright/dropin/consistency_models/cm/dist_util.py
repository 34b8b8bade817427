"""The process group of torchrun's or mpiexec's ranks, without mpi4py, and checkpoint files, without blobfile."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only

from genwright.images.model.checkpoint import read_tensors

# How torchrun, Open MPI and MPICH tell a process its rank, the number of ranks, and its rank on the machine.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)


def launched_ranks() -> tuple[int, int, int]:
    """This process's rank, the number of ranks, and its rank on this machine."""
    for rank, world, local in _LAUNCHERS:
        if rank in os.environ and world in os.environ:
            number = int(os.environ[rank])
            return number, int(os.environ[world]), int(os.environ.get(local, number))
    return 0, 1, 0


def setup_dist() -> None:
    """Join the ranks that torchrun or mpiexec started; every rank takes a GPU, if there are any."""
    if dist.is_initialized():
        return
    rank, world, local = launched_ranks()
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "nccl"
        torch.cuda.set_device(local % torch.cuda.device_count())
    if world == 1:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        return
    # torchrun sets these; mpiexec over several machines needs MASTER_ADDR.
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group(backend, rank=rank, world_size=world)


def dev() -> torch.device:
    """The device of this rank."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load_state_dict(path: str, map_location: Any = "cpu") -> Any:
    """Read a checkpoint file; every rank reads it for itself."""
    return tree_map_only(Tensor, lambda tensor: tensor.to(map_location), read_tensors(Path(path)))


def sync_params(params: Iterable[Tensor]) -> None:
    """Give every rank the tensors of rank 0."""
    for tensor in params if dist.get_world_size() > 1 else ():
        whole = tensor.detach().contiguous()  # weights are channels-last
        dist.broadcast(whole, 0)
        tensor.detach().copy_(whole)


def average(tensors: Iterable[Tensor]) -> None:
    """Replace tensors by their means over the ranks, all in one message."""
    if (world := dist.get_world_size()) == 1:
        return
    parts = list(tensors)
    flat = torch.cat([part.flatten() for part in parts])
    dist.all_reduce(flat)
    for part, mean in zip(parts, (flat / world).split([part.numel() for part in parts]), strict=True):
        part.copy_(mean.view_as(part))
