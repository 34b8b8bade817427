"""The scenario's answers for everything that reads the keyboard; past the last one the input ends."""

import builtins
import functools
import getpass
import io
import os
import sys
import types
from collections.abc import Callable
from typing import Any

from genwright.inspect.surroundings.import_hooks import after_import

_MOST_ENDS = 100  # how often a script may read past the end before the run is ended for it


class EndOfAnswers(EOFError):
    """The script asked for more input than the scenario answers; to the script it is the end of its input."""


class Keyboard:
    """Answers questions; `record` is told what asked, the question and its answer, None past the last one."""

    def __init__(self, record: Callable[[str, str, str | None], None]) -> None:
        self._record = record
        self._ends = 0
        self.stdin = _Stdin([], self._end_of_stdin)

    def give(self, answers: list[str]) -> None:
        self.stdin = _Stdin(answers, self._end_of_stdin)

    def input(self, prompt: object = "", /) -> str:
        """Answer as the scenario says; past its answers the input ends, and asking on ends the run."""
        print(prompt, end="", flush=True)
        line = io.TextIOWrapper.readline(self.stdin)
        if line:
            answer = line.removesuffix("\n")
            print(answer)
            self._record("input", str(prompt), answer)
            return answer
        print()
        self._record("input", str(prompt), None)
        if self._ends:
            self._end()
            raise SystemExit(0)
        self._ends += 1
        sys.excepthook = _excepthook
        raise EndOfAnswers("the scenario has no more answers")

    def _end_of_stdin(self) -> None:
        if not self._ends:
            self._record("sys.stdin", "", None)
        self._end()

    def _end(self) -> None:
        """Once more past the end: a script that catches everything and reads on is ended."""
        self._ends += 1
        if self._ends > _MOST_ENDS:
            print("genwright: the scenario's answers are used up; the run ends here.", file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def install(self) -> None:
        """Answer in place of the keyboard in every module: input, getpass, stdin, open(0), click, prompt_toolkit."""
        builtins.input = self.input
        builtins.open = _opening(builtins.open, self.stdin)
        getpass.getpass = lambda prompt="Password: ", stream=None, **_: self.input(prompt)
        sys.stdin = self.stdin
        # Other programs that the script starts find an empty input.
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        after_import({"click.termui": self._click, "prompt_toolkit.shortcuts.prompt": self._prompt_toolkit})

    def _click(self, module: Any) -> None:
        module.visible_prompt_func = self.input
        module._getchar = lambda echo: (self.input() or "\n")[0]

    def _prompt_toolkit(self, module: Any) -> None:
        def prompt(_: Any, message: Any = "", *args: Any, **kwargs: Any) -> str:
            return self.input(message() if callable(message) else message or "")

        async def prompt_async(session: Any, message: Any = "", *args: Any, **kwargs: Any) -> str:
            return prompt(session, message)

        module.PromptSession.prompt, module.PromptSession.prompt_async = prompt, prompt_async


class _Stdin(io.TextIOWrapper):
    """The answers as lines, with a binary `buffer`; a script that polls its end is ended."""

    def __init__(self, answers: list[str], end: Callable[[], None]) -> None:
        super().__init__(io.BytesIO("".join(f"{a}\n" for a in answers).encode()), encoding="utf-8", newline="\n")
        self._end = end

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        line = super().readline(size)
        if not line:
            self._end()
        return line

    def read(self, size: int | None = -1, /) -> str:
        text = super().read(size)
        if not text:
            self._end()
        return text


def _opening(original: Any, stdin: _Stdin) -> Any:
    """`open`, which gives the answers that are left for file 0."""

    @functools.wraps(original)
    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if type(file) is int and file == 0:
            return io.BytesIO(stdin.buffer.read()) if "b" in mode else io.StringIO(stdin.read())
        return original(file, mode, *args, **kwargs)

    return opened


def _excepthook(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    if issubclass(kind, EndOfAnswers):
        print("genwright: the scenario's answers are used up; the run ends here.", file=sys.stderr)
        raise SystemExit(0)
    sys.__excepthook__(kind, error, trace)
