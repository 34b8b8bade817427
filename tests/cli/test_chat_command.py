"""`genwright chat`, through a pseudo-terminal as a person uses it."""

import json
import os
import signal
import sys

import pytest
from terminal import Terminal

from genwright.cli.chat import change
from genwright.errors import UserError
from genwright.text.engine.request import SamplingParams


def test_a_conversation_with_an_interrupt(smollm2, tmp_path):
    command = (sys.executable, "-m", "genwright", "chat", str(smollm2), "--max-new-tokens", "400", "--device", "cpu")
    terminal = Terminal(*command, cwd=tmp_path)
    terminal.wait_for("> ")
    terminal.type("What is the capital of France?")
    assert "Paris" in terminal.wait_for(r"\n> ")
    terminal.type("Write a very long story about a dragon.")
    terminal.wait_for(r"\w+ \w+ \w+")  # it has begun
    os.killpg(terminal.process.pid, signal.SIGINT)
    terminal.wait_for(r"\n> ", seconds=20)
    assert terminal.process.poll() is None, "Ctrl-C stops the answer and not the program"
    terminal.type("/params max_new_tokens=5")
    assert "max_new_tokens=5" in terminal.wait_for(r"\n> ")
    terminal.type("/nonsense")
    assert "no command /nonsense" in terminal.wait_for(r"\n> ")
    terminal.type("/retry")
    terminal.wait_for(r"\n> ")
    terminal.type("/save talk.json")
    assert "4 messages" in terminal.wait_for(r"\n> ")
    terminal.type("/system Be brief.")
    terminal.wait_for(r"> ")
    terminal.type("/clear")
    terminal.wait_for(r"> ")
    terminal.type("/exit")
    assert terminal.process.wait(20) == 0
    messages = json.loads((tmp_path / "talk.json").read_text())
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    assert "Paris" in messages[1]["content"]


def test_parameters_are_checked():
    assert change(SamplingParams(), "temperature=0.5 top_k=7").top_k == 7
    for wrong in ("nonsense=1", "temperature=hot", "temperature=-1", "top_k"):
        with pytest.raises(UserError):
            change(SamplingParams(), wrong)
