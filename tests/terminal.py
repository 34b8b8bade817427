"""Programs on a pseudo-terminal, as a person runs them."""

import os
import re
import select
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")


class Ended(NamedTuple):
    code: int
    output: str  # all that was shown, without control sequences


class Terminal:
    """A program on a pseudo-terminal: type into it, and wait for what it shows."""

    def __init__(self, *command: str, cwd: Path, term: str = "dumb", **environment: str):
        self.master, slave = _open()
        env = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": term, **environment}
        # With a session of its own, whose terminal this is, Ctrl-C typed into it (\x03) is a SIGINT.
        self.process = subprocess.Popen(command, env=env, cwd=cwd, preexec_fn=partial(os.login_tty, slave))
        os.close(slave)
        self.screen = ""
        self.bracketed = False  # whether the program asked for pasted text to be marked

    def wait_for(self, pattern: str, seconds: float = 90) -> str:
        """Everything shown until the pattern, or until the program ends."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.screen)):
            if time.monotonic() > deadline:
                self.process.kill()
                raise AssertionError(f"waited for {pattern!r} and saw {self.screen!r}")
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.screen += os.read(self.master, 65536).decode(errors="replace")
                    modes = re.findall(r"\x1b\[\?2004([hl])", self.screen[-65536:])
                    self.bracketed = modes[-1] == "h" if modes else self.bracketed
                except OSError:
                    break
        shown = self.screen[: found.end()] if found else self.screen
        self.screen = self.screen[len(shown) :]
        return shown

    def type(self, line: str) -> None:
        os.write(self.master, line.encode() + b"\n")
        self.wait_for(re.escape(line[:20]) + r"[^\n]*\n")  # the terminal's own echo

    def paste(self, text: str) -> None:
        """Paste as terminals do, which send a carriage return for a new line."""
        data = text.replace("\n", "\r").encode()
        os.write(self.master, b"\x1b[200~" + data + b"\x1b[201~" if self.bracketed else data)

    def wait_until_asleep(self) -> None:
        """Until the program waits for input; a Ctrl-C just before that, Python would notice with the next key only."""
        while Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            os.sched_yield()

    def end(self, seconds: float = 90) -> Ended:
        """Wait until the program has ended."""
        shown = self.wait_for(r"(?!)", seconds)
        os.close(self.master)
        return Ended(self.process.wait(seconds), CONTROL.sub("", shown))


def run(*command: str, cwd: Path, term: str = "xterm-256color", **environment: str) -> Ended:
    """Run a program to its end."""
    return Terminal(*command, cwd=cwd, term=term, **environment).end()


def call(function: Callable[[], object], typed: str = "") -> Ended:
    """Call a function of this process with a terminal as its standard streams; quicker than a process of its own."""
    master, slave = _open()
    shown, ended = bytearray(), threading.Event()
    reader = threading.Thread(target=_drain, args=(master, shown, ended))
    reader.start()
    os.write(master, typed.encode())
    code = 0
    streams = {
        name: os.fdopen(os.dup(slave), mode) for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
    }
    os.close(slave)
    try:
        with mock.patch.multiple(sys, **streams), mock.patch.dict(os.environ, TERM="xterm-256color"):
            function()
    except SystemExit as leave:
        code = leave.code or 0
    finally:
        for stream in streams.values():
            stream.close()
        ended.set()
        reader.join()
        os.close(master)
    return Ended(code, CONTROL.sub("", shown.decode(errors="replace")))


def _open() -> tuple[int, int]:
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (40, 120))
    return master, slave


def _drain(master: int, shown: bytearray, ended: threading.Event) -> None:
    """Read until all is read that was written; a process that the function left behind may keep the terminal open."""
    while (ready := select.select([master], [], [], 0.05)[0]) or not ended.is_set():
        try:
            shown += os.read(master, 65536) if ready else b""
        except OSError:  # nobody has it open
            return
