"""Two hosts: network namespaces with a cable between them, and torchrun's rendezvous over it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from text.tiny_chat import make_chat_model

HOSTS = {"genwright-a": "10.213.7.1", "genwright-b": "10.213.7.2"}


def ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True).returncode == 0


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """The commands that run something on each host."""
    first, second = HOSTS
    if shutil.which("ip") is None or not ip("netns", "add", first):
        pytest.skip("network namespaces are not allowed here")
    try:
        ip("netns", "add", second)
        ip("link", "add", "cable", "netns", first, "type", "veth", "peer", "name", "cable", "netns", second)
        for host, address in HOSTS.items():
            ip("-n", host, "address", "add", f"{address}/24", "dev", "cable")
            ip("-n", host, "link", "set", "lo", "up")
            assert ip("-n", host, "link", "set", "cable", "up")
        yield list(HOSTS)
    finally:
        for host in HOSTS:
            ip("netns", "delete", host)


@pytest.mark.skipif("GENWRIGHT_FULL_SIZE" not in os.environ, reason="starts torchrun twice")
def test_a_file_of_prompts_over_two_hosts(hosts: list[str], tmp_path: Path) -> None:
    folder = make_chat_model(tmp_path / "model")
    (tmp_path / "prompts.txt").write_text("one\ntwo\nthree\n")

    def generate(out: str, *flags: str) -> list[str]:
        prompts = ["--prompts", str(tmp_path / "prompts.txt"), "--out", str(tmp_path / out), "--max-new-tokens", "8"]
        model = ["--model", str(folder), "--device", "cpu", "--dtype", "float32", "--cpu-mem", "0.2"]
        return ["-m", "genwright", "generate", *prompts, *model, *flags]

    def texts(out: str) -> list[str]:
        lines = [json.loads(line) for line in (tmp_path / out).read_text().splitlines()]
        return [line["text"] for line in sorted(lines, key=lambda line: line["line"])]

    subprocess.run([sys.executable, *generate("one.jsonl")], check=True)
    env = os.environ | {"GLOO_SOCKET_IFNAME": "cable", "OMP_NUM_THREADS": "1"}
    rendezvous = ["--master-addr", HOSTS[hosts[0]], "--master-port", "29400"]
    processes = []
    for number, host in enumerate(hosts):
        local = ["--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(number), "--local-addr", HOSTS[host]]
        torchrun = [sys.executable, "-m", "torch.distributed.run", *local, *rendezvous]
        command = ["ip", "netns", "exec", host, *torchrun, *generate("two.jsonl", "--tp", "2")]
        processes.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
    ends = [process.communicate(timeout=150)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ends
    assert texts("two.jsonl") == texts("one.jsonl") and len(texts("two.jsonl")) == 3
