"""Messages typed and pasted at a prompt."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import Terminal

READ = "from genwright.cli.prompt import open_prompt; read = open_prompt('> '); print([read(), read()])"


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
def test_a_pasted_text_is_one_message(term: str, tmp_path: Path) -> None:
    terminal = Terminal(sys.executable, "-c", READ, cwd=tmp_path, term=term)
    terminal.wait_for("> ")
    terminal.paste("one\n\n  two")
    os.write(terminal.master, b" and more\n")
    terminal.wait_for("> ")
    terminal.type("three")
    assert "['one\\n\\n  two and more', 'three']" in terminal.end().output


def test_without_a_line_editor_lines_that_come_together_are_one_message(tmp_path: Path) -> None:
    terminal = Terminal(sys.executable, "-c", f"import sys; sys.modules['readline'] = None; {READ}", cwd=tmp_path)
    terminal.wait_for("> ")
    terminal.paste("one\ntwo\n")
    terminal.wait_for("> ")
    terminal.type("three")
    assert "['one\\ntwo', 'three']" in terminal.end().output


def test_a_pipe_has_one_message_per_line() -> None:
    done = subprocess.run([sys.executable, "-c", READ], input="one\ntwo\n", capture_output=True, text=True, check=True)
    assert done.stdout == "> > ['one', 'two']\n"
