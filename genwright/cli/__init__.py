"""The command line: one table of verbs, one file per verb, imported only when it is asked for."""

import errno
import os
import signal
import sys
import warnings
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version

from genwright.errors import GenwrightWarning, UserError

VERBS = {
    "generate": "Complete or answer prompts with a text model.",
    "chat": "Talk with a text model.",
    "images": "Sample, edit, train and measure images.",
    "bench": "Measure speed beside the device's limits.",
    "eval": "Measure how well a text model predicts.",
    "convert": "Write a checkpoint in another format.",
    "quantize": "Write a checkpoint with packed weights.",
    "pull": "List and fetch models.",
    "inspect": "Turn a model repository's script into a recorded, unattended run.",
}
_PYTHONS_FORMAT = warnings.formatwarning


def main() -> None:
    """Exit 0 on success, 1 on a user's error (one sentence on stderr), 2 on wrong usage, 130 on Ctrl-C."""
    try:
        try:
            _main(*(sys.argv[1:] or ["--help"]))
        finally:
            if sys.stdout is not None:  # it was closed before Python started
                sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        # What is still in the buffer would fail again when Python flushes it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno == errno.ENOSPC:
            print(f"genwright: The output cannot be written: {error.strerror}.", file=sys.stderr)
        sys.exit(1)


def _main(verb: str, *arguments: str) -> None:
    if verb in ("-h", "--help"):
        print(_usage())
    elif verb == "--version":
        print(f"genwright {version('genwright')}")
    elif verb in ("--show-completion", "--complete"):
        _run("completion", [verb, *arguments])
    elif verb in VERBS:
        _run(verb, list(arguments))
    else:
        close = get_close_matches(verb, VERBS)
        hint = f"did you mean {close[0]!r}?" if close else "`genwright --help` lists the commands."
        print(f"genwright: There is no command {verb!r}; {hint}", file=sys.stderr)
        sys.exit(2)


def _run(verb: str, arguments: list[str]) -> None:
    # SIGTERM ends a command as Ctrl-C does, so that it leaves its files whole.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    warnings.formatwarning = _format_warning
    try:
        import_module(f"genwright.cli.{verb}").app(arguments, prog_name=f"genwright {verb}")
    except UserError as error:
        print(f"genwright: {error}", file=sys.stderr)
        sys.exit(1)
    except (KeyboardInterrupt, SystemExit) as end:  # typer turns Ctrl-C into SystemExit(130)
        code = 130 if isinstance(end, KeyboardInterrupt) else end.code
        if code == 130 and sys.stderr.isatty():
            print(file=sys.stderr)  # the shell's prompt goes on a line of its own
        sys.exit(code)


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Ours in one line, others' as Python writes them."""
    if issubclass(category, GenwrightWarning):
        return f"genwright: {message}\n"
    return _PYTHONS_FORMAT(message, category, filename, lineno, line)


def _usage() -> str:
    lines = [
        "Usage: genwright COMMAND [OPTIONS]",
        "",
        "Run, measure and inspect generative models, text and images.",
        "",
    ]
    lines += [f"  {verb:<10} {sentence}" for verb, sentence in VERBS.items()]
    lines += ["", "`genwright COMMAND --help` tells more about each."]
    return "\n".join([*lines, "`genwright --show-completion` prints what completes them in bash and zsh."])
