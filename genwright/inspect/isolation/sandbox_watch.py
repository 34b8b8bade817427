"""Start a run and watch it: what it prints, what it uses, and the limit that ends it."""

import codecs
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TextIO

from genwright.inspect.isolation.sandbox_cgroup import ControlGroup
from genwright.inspect.isolation.sandbox_usage import (
    folder_bytes,
    kill_tree,
    namespace_processes,
    namespace_usage,
    tree_usage,
)

LOOK = 0.05  # seconds between two looks at the processes
SHARE = 0.05  # the part of the time that looking may take
PACKAGE = Path(__file__).parents[3]
INIT = "import sys; sys.path.insert(0, {!r}); from genwright.inspect.isolation.sandbox_init import main; main({}, {})"


@dataclass(frozen=True)
class _Copy:
    file: IO[bytes]
    terminal: TextIO
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))


class Watch:
    """One run from its start to its end; then the attributes say how it ended."""

    def __init__(
        self, plan: dict[str, Any], limits: dict[str, float], folder: Path, group: ControlGroup, echo: bool
    ) -> None:
        self._plan, self._limits, self._folder, self._group = plan, limits, folder, group
        self._first: int | None = None  # the namespace's first process
        self._ready = False  # the namespace has its own /proc
        self._printed = 0
        self._next_look = self._next_size = 0.0
        self._echo = echo
        self.refused = self.not_started = ""
        self.limit: str | None = None
        self.exit_code: int | None = None
        self.seconds, self.peak_memory = 0.0, 0

    def run(self) -> None:
        """Run to the end; however this is left, no process of the run is left running."""
        plan_read, plan_write = os.pipe()
        report_read, report_write = os.pipe()
        program = INIT.format(str(PACKAGE), plan_read, report_write)
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={},
            pass_fds=(plan_read, report_write),
            start_new_session=True,
        )
        os.close(plan_read)
        os.close(report_write)
        self._group.add(self._process.pid)
        try:
            with open(plan_write, "w", encoding="utf-8") as file:
                json.dump(self._plan, file)
            self._watch(report_read)
        finally:
            self._kill()
            self._process.wait()
            os.close(report_read)
        self.seconds = time.monotonic() - self._started

    def _watch(self, report: int) -> None:
        out, err = self._process.stdout, self._process.stderr
        assert out is not None and err is not None
        with (
            selectors.DefaultSelector() as selector,
            open(self._folder / "output.txt", "ab", buffering=0) as output,
            open(self._folder / "error.txt", "ab", buffering=0) as error,
            out,
            err,
        ):
            targets = {out.fileno(): _Copy(output, sys.stdout), err.fileno(): _Copy(error, sys.stderr)}
            for descriptor in (report, *targets):
                os.set_blocking(descriptor, False)
                selector.register(descriptor, selectors.EVENT_READ)
            while report in selector.get_map():
                for key, _ in selector.select(LOOK):
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fd)
                    elif key.fd == report:
                        self._hear(data)
                    else:
                        self._keep(data, targets[key.fd])
                self._look()
            self._look()
            for descriptor, target in targets.items():  # what was printed last
                with suppress(BlockingIOError):
                    while data := os.read(descriptor, 1 << 16):
                        self._keep(data, target)

    def _hear(self, data: bytes) -> None:
        """Take in what `sandbox_init` reports."""
        for line in data.splitlines():  # each is written at once and is shorter than a pipe's unit
            message = json.loads(line)
            self.refused = message.get("refused", self.refused)
            self.not_started = message.get("not_started", self.not_started)
            self.exit_code = message.get("exit", self.exit_code)
            self.peak_memory = max(self.peak_memory, message.get("memory", 0))
            self._first = message.get("init", self._first)
            self._ready = message.get("ready", self._ready)
            if message.get("processes", 0) - 1 > self._limits.get("processes", float("inf")):
                self._end("processes")  # the script failed when no more could be started
            if not self._plan["namespaces"] and ("exit" in message or "refused" in message):
                self._look_at_processes()
                self._kill()

    def _keep(self, data: bytes, target: "_Copy") -> None:
        """Write what was printed to its file, up to the limit, and to the terminal."""
        room = len(data)
        if "output_mb" in self._limits:
            room = max(0, int(self._limits["output_mb"] * 1e6) - self._printed)
        self._printed += len(data)
        target.file.write(data[:room])
        if self._echo:
            target.terminal.write(target.decoder.decode(data[:room]))
            target.terminal.flush()
        if len(data) > room:
            self._end("output_mb")

    def _look(self) -> None:
        """Compare what the run uses with its limits, no more often than looking is cheap."""
        now = time.monotonic()
        if now - self._started > self._limits.get("seconds", float("inf")):
            self._end("seconds")
        if self._plan["namespaces"] and not self._ready:
            return
        if self._group.is_out_of_memory():
            self.peak_memory = max(self.peak_memory, int(self._limits["memory_gb"] * 1e9))
            self._end("memory_gb")
        if now >= self._next_look:
            self._look_at_processes()
            done = time.monotonic()
            self._next_look = done + max(LOOK, (done - now) / SHARE)
        if "output_mb" in self._limits and now >= self._next_size:
            if folder_bytes(self._folder) > self._limits["output_mb"] * 1e6:
                self._end("output_mb")
            done = time.monotonic()
            self._next_size = done + max(10 * LOOK, (done - now) / SHARE)

    def _look_at_processes(self) -> None:
        most = self._limits.get("processes", float("inf"))
        if self._first is None:
            used = tree_usage(self._process.pid)
        elif len(namespace_processes(self._first)) - 1 > most:
            return self._end("processes")  # there is no time to look at each of them
        else:
            allowed = self._limits.get("memory_gb", float("inf")) * 1e9
            used = namespace_usage(self._first, min(allowed, self.peak_memory * 1.1))
        self.peak_memory = max(self.peak_memory, used.memory)
        for name, value in (
            ("memory_gb", used.memory / 1e9),
            ("cpu_seconds", used.cpu_seconds),
            ("processes", used.processes),
        ):
            if value > self._limits.get(name, float("inf")):
                self._end(name)
        return None

    def _end(self, limit: str) -> None:
        if self.limit is None:
            self.limit = limit
            self._kill()

    def _kill(self) -> None:
        if self._plan["namespaces"]:
            # All processes of a namespace die with its first one, and that one with the process that made it.
            with suppress(ProcessLookupError):
                if self._first is None:
                    self._process.kill()
                elif self._process.poll() is None:
                    os.kill(self._first, signal.SIGKILL)
        else:
            kill_tree(self._process.pid)
