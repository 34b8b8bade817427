"""Ranks that mpiexec starts, without mpi4py: weights of rank 0, and means of gradients."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from dropin.consistency_models.tiny import ROOT

SCRIPT = """
import torch, torch.distributed as dist
from cm import dist_util
dist_util.setup_dist()
rank = dist.get_rank()
weight = torch.nn.Parameter(torch.full((2, 3, 1, 1), float(rank)).to(memory_format=torch.channels_last))
dist_util.sync_params([weight])
assert weight.detach().eq(0).all()
parts = [torch.full((2,), rank + 1.0), torch.arange(3.0) * rank]
dist_util.average(parts)
assert [part.tolist() for part in parts] == [[1.5, 1.5], [0, 0.5, 1]]
print(dist.get_world_size(), dist_util.dev(), len(dist_util.load_state_dict("tiny.pt", map_location="cpu")))
"""


def test_two_ranks_of_mpiexec(tmp_path: Path, tiny_pt: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "tiny.pt").symlink_to(tiny_pt)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "genwright", "dropin", "consistency_models", "--script", "script.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MASTER_PORT": str(port)}
    environment |= {"OMPI_COMM_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": ""}
    started = [
        subprocess.Popen(
            command, cwd=tmp_path, env={**environment, "OMPI_COMM_WORLD_RANK": str(rank)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    for process in started:
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert out.startswith("2 cpu ")


def test_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    from cm.dist_util import launched_ranks

    assert launched_ranks() == (0, 1, 0)
    for names in (("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"), ("RANK", "WORLD_SIZE", "LOCAL_RANK")):
        with monkeypatch.context() as environment:
            for name, value in zip(names, ("9", "16", "1"), strict=True):
                environment.setenv(name, value)
            assert launched_ranks() == (9, 16, 1)
