"""`genwright chat`, through a pseudo-terminal as a person uses it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import Terminal
from text.tiny_chat import make_chat_model

from genwright import LLM
from genwright.cli.chat import app, changed
from genwright.errors import UserError
from genwright.text.engine.request import SamplingParams

PROMPT = r"\x1b\[\?2004h> "  # where pasted text will be marked


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_chat_model(tmp_path_factory.mktemp("tiny"), do_sample=True, temperature=0.9, top_k=9, top_p=0.8)


def test_a_conversation_as_a_person_has_it(model: Path, tmp_path: Path) -> None:
    flags = ("--device", "cpu", "--dtype", "float32", "--top-k", "40", "--seed", "5")
    terminal = Terminal(
        *(sys.executable, "-m", "genwright", "chat", str(model), "--system", "Be brief.", *flags),
        cwd=tmp_path,
        term="xterm-256color",
    )

    def do(line: str) -> str:
        terminal.type(line)
        return terminal.wait_for(PROMPT)

    def saved() -> list[dict[str, str]]:
        do("/save talk.json")
        return json.loads((tmp_path / "talk.json").read_text())

    terminal.wait_for(PROMPT)
    assert "There is no answer yet" in do("/params temperature=0") + (shown := do("/retry"))
    assert "greedy" not in shown
    do("/params temperature=0.9")
    shown = do("/params")  # the model's own, and flags over them; an answer may take all of the context
    assert "temperature=0.9, top_k=40, top_p=0.8" in shown and "max_new_tokens=4096" in shown
    terminal.paste("first line\n\nthird line")
    terminal.type("")
    terminal.wait_for(r"[a-zA-Z]{20}")  # the answer has begun
    os.write(terminal.master, b"\x03")
    terminal.wait_for(PROMPT)
    first = saved()
    assert [message["role"] for message in first] == ["system", "user", "assistant"]
    assert first[1]["content"] == "first line\n\nthird line" and 0 < len(first[2]["content"]) < 4000

    assert "cut off after 9 tokens" in do("/params max_new_tokens=9") + do("hello")
    answers = [saved()[-1]["content"], *(do("/retry") and saved()[-1]["content"] for _ in range(2))]
    assert len(set(answers)) == 3 and len(saved()) == 5
    os.write(terminal.master, b"half a word")
    terminal.wait_for("half a word")
    terminal.wait_until_asleep()
    os.write(terminal.master, b"\x03")
    terminal.wait_for(PROMPT)
    assert "no command /nonsense" in do("/nonsense")

    terminal.paste("x" * 5000)
    terminal.type("")
    assert "The message has" in terminal.wait_for(PROMPT)
    assert len(saved()) == 5
    do("/params max_new_tokens=4096")
    terminal.paste("x" * (4000 - sum(len(message["content"]) + 30 for message in saved())))
    terminal.type("")
    assert "The context of 4,096 tokens is full, so the answer was cut off" in terminal.wait_for(PROMPT)
    assert "With this message the conversation has" in do("and?") and len(saved()) == 7
    assert "Dropped the oldest turns: 3; left: 0." in do("/trim")
    do("/params max_new_tokens=3")
    do("again")
    do("/clear")
    assert saved() == [{"role": "system", "content": "Be brief."}]
    do("/system Be long.")
    assert saved() == [{"role": "system", "content": "Be long."}]
    assert "~nobody-here/talk.json cannot be written" in do("/save ~nobody-here/talk.json")
    (tmp_path / "notes.txt").write_text("precious")
    assert "notes.txt exists already" in do("/save notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "precious"
    (tmp_path / "loop").symlink_to("loop")
    assert "loop exists already" in do("/save loop") and ". is a folder" in do("/save .")
    assert "cannot be written: File name too long" in do("/save " + "a" * 300)
    os.write(terminal.master, b"\x04")
    assert terminal.end().code == 0


def test_a_system_message_that_is_not_utf8_is_saved(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "genwright", "chat", str(model), "--device", "cpu", "--system", b"a\xff"]
    done = subprocess.run(command, input=b"/save talk.json\n", cwd=tmp_path, capture_output=True)
    assert done.returncode == 0 and done.stderr == b""
    assert json.loads((tmp_path / "talk.json").read_text()) == [{"role": "system", "content": "a\udcff"}]


@pytest.mark.parametrize("answering", [True, False])
def test_sigterm_ends_a_chat(model: Path, tmp_path: Path, answering: bool) -> None:
    command = (sys.executable, "-m", "genwright", "chat", str(model), "--device", "cpu", "--temperature", "1")
    terminal = Terminal(*command, cwd=tmp_path, term="xterm-256color")
    terminal.wait_for(PROMPT)
    if answering:
        terminal.type("hello")
        terminal.wait_for(r"[a-zA-Z]{20}")
    else:
        terminal.wait_until_asleep()
    os.kill(terminal.process.pid, signal.SIGTERM)
    assert terminal.end().code == 130


@pytest.mark.parametrize("leave", ["/exit", "/quit now"])
def test_what_needs_no_answer(model: Path, tmp_path: Path, leave: str) -> None:
    command = [sys.executable, "-m", "genwright", "chat", "--model", str(model), "--device", "cpu"]
    typed = f"/save talk.json\n{leave}\n/nonsense\n"
    done = subprocess.run(command, input=typed, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "There is nothing to save yet.\n")
    assert not (tmp_path / "talk.json").exists()


def test_chat_without_a_template_is_refused(model: Path, tmp_path: Path) -> None:
    for file in model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UserError, match="The checkpoint has no chat template; pass --chat-template chatml, "):
        app([str(tmp_path), "--device", "cpu"], standalone_mode=False)
    ours, theirs = LLM(tmp_path, device="cpu", chat_template="chatml"), LLM(model, device="cpu")
    assert ours.encode_chat([{"role": "user", "content": "a"}]) == theirs.encode_chat(
        [{"role": "user", "content": "a"}]
    )


def test_parameters_are_checked() -> None:
    assert changed(SamplingParams(), "temperature=0.5 top_k=7").top_k == 7
    found = changed(SamplingParams(), 'stop=["a b", "c"] schema={"type": "object"}  top_k = 7')
    assert found == SamplingParams(stop=("a b", "c"), schema={"type": "object"}, top_k=7)
    assert changed(SamplingParams(), 'logit_bias={"5": 1.5}').logit_bias == {5: 1.5}
    for wrong in ("nonsense=1", "temperature=hot", "temperature=-1", "top_k", "n=2", "logits_processor=1", "top_k=7,"):
        with pytest.raises(UserError):
            changed(SamplingParams(), wrong)
