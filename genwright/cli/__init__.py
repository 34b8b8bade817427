"""The command line: a table of verbs with one file each, which is imported only when its verb is called."""

import errno
import gc
import os
import signal
import sys
import warnings
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from typing import Any

from genwright.errors import GenwrightWarning, UserError

VERBS = {
    "generate": "Complete or answer prompts with a text model.",
    "chat": "Talk with a text model.",
    "serve": "Serve a model to HTTP clients.",
    "images": "Sample, edit, train and measure images.",
    "plan": "Find the best placement of a model over GPU, CPU and disk.",
    "bench": "Measure speed and compare it with the device's limits.",
    "eval": "Measure how well a text model predicts.",
    "convert": "Write a checkpoint in another format.",
    "quantize": "Write a checkpoint with quantized weights.",
    "pull": "List and fetch models.",
    "inspect": "Turn a model repository's script into a recorded, unattended run.",
    "dropin": "Run another project's commands and scripts on Genwright.",
}
LOADING = ("generate", "chat")  # verbs whose first work is `options.load`
_format_by_python = warnings.formatwarning


def main() -> None:
    """Run a command. Exit codes: 0 success, 1 UserError (printed on stderr), 2 wrong usage, 130 Ctrl-C."""
    _prepare_streams()
    try:
        try:
            _main(*(sys.argv[1:] or ["--help"]))
        finally:
            if sys.stdout is not None:  # None if it was closed before Python started
                sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        # Python flushes the buffer again when it exits; let that succeed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno == errno.ENOSPC:
            print(f"genwright: The output cannot be written: {error.strerror}.", file=sys.stderr)
        sys.exit(1)


def _prepare_streams() -> None:
    """Let no byte or character that standard input or output cannot express end the command."""
    if sys.stdin is None:  # it was closed before Python started
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "replace")):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors=errors)


def _main(verb: str, *arguments: str) -> None:
    if verb in ("-h", "--help"):
        print(_usage())
    elif verb == "--version":
        from importlib.metadata import version  # as slow to import as typer

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
    # Handle SIGTERM like Ctrl-C, so that a command leaves its files complete.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    warnings.formatwarning = _format_warning
    if verb in LOADING:
        # Hardly anything that is imported or loaded becomes garbage; to look for it takes a tenth of `import torch`.
        gc.disable()
    try:
        import_module(f"genwright.cli.{verb}").app(arguments, prog_name=f"genwright {verb}")
    except UserError as error:
        print(f"genwright: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:  # such as a name that is too long, or a folder that the user may not enter
        if error.filename is None or verb == "dropin":  # a script's own errors keep their traceback
            raise
        print(f"genwright: {error.filename} cannot be read or written: {error.strerror}.", file=sys.stderr)
        sys.exit(1)
    except (KeyboardInterrupt, SystemExit) as end:  # typer turns Ctrl-C into SystemExit(130)
        code = 130 if isinstance(end, KeyboardInterrupt) else end.code
        if code == 130:
            for number in (signal.SIGINT, signal.SIGTERM):  # a second Ctrl-C does not wait for the engine's step
                signal.signal(number, lambda *_: os._exit(130))
            if sys.stderr.isatty():
                print(file=sys.stderr)  # start the shell's prompt on a new line
        sys.exit(code)


def _format_warning(message: Warning | str, category: type[Warning], *place: Any, **line: Any) -> str:
    """Format our warnings as one line and others as Python does."""
    if issubclass(category, GenwrightWarning):
        return f"genwright: {message}\n"
    return _format_by_python(message, category, *place, **line)


def _usage() -> str:
    verbs = "\n".join(f"  {verb:<10} {sentence}" for verb, sentence in VERBS.items())
    return f"""\
Usage: genwright COMMAND [OPTIONS]

Run, measure, serve and inspect generative models, text and images.

{verbs}

`genwright COMMAND --help` describes a command and its options.
`genwright --show-completion` prints a completion script for bash or zsh."""
