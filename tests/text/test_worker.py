"""Ranks that LLM starts itself: one script, N processes, and one sentence if a rank is lost."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from text.tiny_chat import make_chat_model

from genwright import LLM, SamplingParams
from genwright.errors import UserError
from genwright.parallel import watchdog
from genwright.parallel.ranks import Ranks
from genwright.text.engine.sharded import ShardedEngine

GREEDY = SamplingParams(max_new_tokens=6)
MESSAGES = [{"role": "user", "content": "Hi"}]


def ranks_of(llm: LLM) -> Ranks:
    assert isinstance(llm.engine, ShardedEngine)
    return llm.engine.ranks


def test_a_script_starts_ranks_and_loses_one(tmp_path: Path) -> None:
    """The same text, streams, chats and stop strings; a second model waits its turn; a killed rank is named."""
    folder = make_chat_model(tmp_path)
    stop = SamplingParams(max_new_tokens=40, temperature=1.0, seed=3, stop=("e",))
    with LLM(folder, device="cpu", dtype="float32", cpu_mem=0.2) as one:
        expected = one.generate(["Hello", "World"], GREEDY), one.chat(MESSAGES, stop).text
    llm = LLM(folder, device="cpu", dtype="float32", cpu_mem=0.2, tp=2)
    ranks = ranks_of(llm)
    got = llm.generate(["Hello", "World"], GREEDY)
    assert [result.text for result in got] == [result.text for result in expected[0]]
    assert llm.chat(MESSAGES, stop).text == expected[1]
    assert "".join(piece.text for piece in llm.stream("Hello", GREEDY)) == got[0].text
    for piece in llm.stream("World", SamplingParams(max_new_tokens=1000)):
        if piece.ids:
            break  # cancels the request on every rank
    assert llm.generate("Hello", GREEDY)[0].text == got[0].text
    with pytest.raises(UserError, match="A logits_processor runs in one process"):
        llm.generate("Hello", SamplingParams(logits_processor=lambda tokens, logits: logits))
    with pytest.raises(UserError, match="one model over several ranks at a time"):
        LLM(folder, device="cpu", tp=2)
    assert ranks.children is not None
    os.kill(ranks.children.pid(1), signal.SIGKILL)
    with pytest.raises(UserError, match="Rank 1 was killed by SIGKILL, so all ranks have ended"):
        llm.generate("Hello", SamplingParams(max_new_tokens=100, ignore_eos=True))
    with pytest.raises(UserError, match="Rank 1 was killed"):
        llm.generate("Hello", GREEDY)
    llm.close()


def test_a_silent_rank_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "SILENCE", 3.0)
    monkeypatch.setattr(watchdog, "BEAT", 0.2)
    llm = LLM(make_chat_model(tmp_path), device="cpu", dtype="float32", cpu_mem=0.2, tp=2)
    children = ranks_of(llm).children
    assert children is not None
    os.kill(children.pid(1), signal.SIGSTOP)
    with pytest.raises(UserError, match=r"Rank 1 (gave no sign of life for 3 s|was killed by SIGKILL), so all ranks"):
        llm.generate("Hello", SamplingParams(max_new_tokens=4000, ignore_eos=True))
    llm.close()


def torchrun_rank(rank: int, port: int, folder: Path, *flags: str) -> subprocess.Popen[str]:
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    env = os.environ | {name: str(value) for name, value in places.items()} | {"GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "genwright", "generate", "Hello", "--model", str(folder), "--device", "cpu"]
    return subprocess.Popen(
        [*command, "--cpu-mem", "0.2", *flags], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_port_in_use_and_a_wrong_number_of_ranks_are_one_sentence(tmp_path: Path) -> None:
    folder = make_chat_model(tmp_path)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        taken, wrong = torchrun_rank(0, port, folder, "--tp", "2"), torchrun_rank(0, 1, folder)
        for process, sentence in (
            (taken, f"Port {port} of 127.0.0.1, where the ranks meet, is in use; set MASTER_PORT to another.\n"),
            (wrong, "torchrun started 2 ranks, but tp times pp is 1.\n"),
        ):
            out, errors = process.communicate(timeout=60)
            assert (process.returncode, out) == (1, "") and errors.endswith(sentence)


@pytest.mark.skipif("GENWRIGHT_FULL_SIZE" not in os.environ, reason="waits for a minute")
def test_a_rank_that_never_starts_ends_the_job_within_a_minute(tmp_path: Path) -> None:
    started = time.monotonic()
    out, errors = torchrun_rank(0, 29777, make_chat_model(tmp_path), "--tp", "2").communicate(timeout=100)
    assert time.monotonic() - started < 60 and out == ""
    assert errors.endswith("Rank 1 of 2 did not start within 45 s.\n")


@pytest.mark.skipif("GENWRIGHT_FULL_SIZE" not in os.environ, reason="starts six processes")
def test_chat_and_files_of_prompts_on_two_ranks(tmp_path: Path) -> None:
    folder = str(make_chat_model(tmp_path / "model"))
    (tmp_path / "prompts.txt").write_text("one\ntwo\n")
    flags = ["--device", "cpu", "--dtype", "float32", "--cpu-mem", "0.2", "--max-new-tokens", "12", "--seed", "1"]

    def run(*words: str | Path, typed: str = "") -> str:
        command = [sys.executable, "-m", "genwright", *map(str, words), *flags]
        return subprocess.run(command, input=typed, stdout=subprocess.PIPE, text=True, check=True, timeout=120).stdout

    chats, texts = [], []
    for ranks in ("1", "2"):
        chats.append(run("chat", folder, "--tp", ranks, typed="one\ntwo words\n/exit\n"))
        out = tmp_path / f"{ranks}.jsonl"
        run("generate", "--prompts", tmp_path / "prompts.txt", "--out", out, "--model", folder, "--tp", ranks)
        texts.append(sorted(json.loads(line)["text"] for line in out.read_text().splitlines()))
    assert chats[0] == chats[1] and len(chats[0]) > 20
    assert texts[0] == texts[1] and len(texts[0]) == 2
