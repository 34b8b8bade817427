"""FlexLLMGen's benchmark over ranks: its flags, its batch, and the answers of one rank."""

import argparse
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from dropin.flexllmgen.test_flex_opt import FLAGS, REPORT

from genwright.errors import UserError

ROOT = Path(__file__).parents[3]


def parse(*words: str) -> argparse.Namespace:
    from flexllmgen.dist_flex_opt import add_distributed_parser_arguments
    from flexllmgen.flex_opt import add_parser_arguments

    parser = argparse.ArgumentParser()
    add_parser_arguments(parser)
    add_distributed_parser_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize("flag", FLAGS["dist_flex_opt"])
def test_every_flag_is_read(flag: str) -> None:
    words, value = FLAGS["dist_flex_opt"][flag]
    name = flag[2:].replace("-", "_")
    assert getattr(parse(), name) != value
    assert getattr(parse(flag, *words), name) == value


def test_a_process_is_told_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    from flexllmgen.dist_flex_opt import join_ranks

    monkeypatch.setattr(os, "environ", {})
    join_ranks(alone := parse("--rank", "3"))
    assert (alone.rank, alone.world_size, os.environ) == (0, 1, {})
    head = ["--head-ip", "10.0.0.1", "--port", "7777"]
    for words in (head, [*head, "--rank", "1"]):
        with pytest.raises(UserError, match="Several ranks need --rank and --world-size"):
            join_ranks(parse(*words))
    with pytest.raises(UserError, match="--use-mpi needs mpirun"):
        join_ranks(parse(*head, "--use-mpi"))
    expected = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "7777"}
    join_ranks(parse(*head, "--rank", "1", "--world-size", "4"))
    assert os.environ == {**expected, "LOCAL_RANK": "1"}
    mpi = {"RANK": "1", "SIZE": "4", "LOCAL_RANK": "0", "LOCAL_SIZE": "2"}
    os.environ.clear()
    os.environ.update(given := {f"OMPI_COMM_WORLD_{name}": value for name, value in mpi.items()})
    join_ranks(parse(*head, "--use-mpi"))
    assert os.environ == {**expected, **given, "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}


def run_ranks(ranks: int, words: list[str], cwd: Path) -> str:
    """Rank 0's output."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    place = ["--head-ip", "127.0.0.1", "--port", str(port), "--world-size", str(ranks)] if ranks > 1 else []
    command = [sys.executable, "-m", "genwright", "dropin", "flexllmgen", "dist_flex_opt", *words, *place]
    started = [
        subprocess.Popen(
            [*command, *(["--rank", str(rank)] if ranks > 1 else [])],
            cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0] * ranks, outputs
    assert not any(REPORT.search(out) for out, _ in outputs[1:])
    return outputs[0][0]


def test_two_ranks_answer_as_one_does(tiny, tmp_path: Path) -> None:
    words = ["--model", "facebook/opt-125m", "--path", str(tiny.path), "--prompt-len", "40", "--gen-len", "6"]
    words += ["--gpu-batch-size", "1", "--percent", "0", "100", "50", "50", "100", "0", "--offload-dir", "offload"]
    outputs = [run_ranks(ranks, words, tmp_path) for ranks in (1, 2)]
    answers = []
    for ranks, output in enumerate(outputs, 1):
        assert REPORT.search(output)
        assert (
            tmp_path / f"rank-{ranks - 1}-fo-125m-gbs1-ngbs1-prompt40-gen6-percent-0-100-50-50-100-0-gpu-cache.log"
        ).exists()
        answers.append(
            re.search(r"\n0: (Paris is the capital city of.+)\n-{70}", output, re.DOTALL)[1].split("\n---")[0]
        )
        assert f"\n{ranks - 1}: Paris is the capital city of" in output  # the batch is as many times the policy's
    assert answers[0] == answers[1]
