"""The options of a command line, and which of them an argv still lacks."""

import argparse
import contextlib
import copy
import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from genwright.inspect.analysis.interpreter_values import Parser


@dataclass(frozen=True)
class Option:
    """One value of the command line; positional ones have no flags, `default` is None where there is none."""

    name: str
    flags: tuple[str, ...] = ()
    type: str = "str"
    default: Any = None
    required: bool = False
    choices: tuple[Any, ...] = ()
    help: str = ""
    takes_value: bool = True
    command: str = ""
    count: int = 1
    is_command: bool = False  # its value is the name of a command

    @classmethod
    def of_commands(cls, names: Iterable[str], **settings: Any) -> "Option":
        """The option that says which command to run."""
        given: dict[str, Any] = {"name": "command", "required": True, "help": "which command to run"} | settings
        return cls(**given, choices=tuple(names), is_command=True)

    @property
    def label(self) -> str:
        return f"{self.command} {self.flags[-1] if self.flags else self.name.upper()}".strip()

    def describe(self) -> str:
        kind = f"one of {', '.join(map(str, self.choices))}" if self.choices else self.type
        return f"{self.label} ({kind})" + (f": {self.help}" if self.help else "")


@dataclass(frozen=True)
class CommandLine:
    """The options of a script and the library that reads them; `parser` is a real one when that is argparse."""

    kind: str = ""
    options: tuple[Option, ...] = ()
    line: int = 0
    parser: Parser | None = field(default=None, compare=False)

    def missing(self, argv: list[str]) -> list[Option]:
        """The required options that an argv does not give."""
        required = [o for o in self.options if o.required]
        given = self.given(argv) if required else {}
        if self.parser is not None:
            return [o for o in required if o.name not in given and (not o.command or o.command in argv)]
        chosen = self._chosen(argv)
        return [o for o in required if o.command in ("", chosen) and o.name not in given]

    def _chosen(self, argv: list[str]) -> str:
        commands = {o.command for o in self.options if o.command}
        return next((a for a in argv if a in commands), "")

    def given(self, argv: list[str]) -> dict[str, Any]:
        """The options that an argv gives, with their values as texts."""
        if self.parser is not None:
            return _given(self.parser, argv)
        chosen = self._chosen(argv)
        rest = argv[argv.index(chosen) + 1 :] if chosen else argv
        mine = [o for o in self.options if o.command in ("", chosen)]
        flags = {flag: o for o in mine for flag in o.flags}
        given: dict[str, Any] = {"command": chosen} if chosen else {}
        positional: list[str] = []
        tokens = iter(rest)
        for token in tokens:
            option = flags.get(token.partition("=")[0])
            if option is None:
                positional += [] if token.startswith("-") else [token]
            elif "=" in token or not option.takes_value:
                given[option.name] = token.partition("=")[2]
            else:
                given[option.name] = next(tokens, "")
        # fire fills parameters by position too; click's arguments have no flags.
        open_positions = [o.name for o in mine if o.name not in given and (not o.flags or self.kind == "fire")]
        return given | dict(zip(open_positions, positional, strict=False))


def _given(parser: Parser, argv: list[str]) -> dict[str, Any]:
    """The options that an argv gives, as argparse reads it once nothing is required or has a default."""
    parser = copy.deepcopy(parser)
    pending: list[argparse.ArgumentParser] = [parser]
    while pending:
        current = pending.pop()
        current._defaults.clear()
        for action in current._actions:
            action.required, action.default = False, argparse.SUPPRESS
            action.type = None
            action.choices = action.choices if isinstance(action, argparse._SubParsersAction) else None
            if isinstance(action, argparse._SubParsersAction):
                pending += action.choices.values()
            elif not action.option_strings and action.nargs is None:
                action.nargs = "?"
            elif not action.option_strings and action.nargs == "+":
                action.nargs = "*"
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # an example of a README may ask for --help
            return vars(parser.parse_known_args(argv)[0])
    except (ValueError, argparse.ArgumentError, SystemExit):
        return {}
