"""`genwright chat`: talk with a model."""

import json
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genwright.cli.app import new_app
from genwright.cli.options import ModelOptions, expand
from genwright.errors import UserError
from genwright.text.engine.request import SamplingParams
from genwright.text.pull import DEFAULT

if TYPE_CHECKING:
    from genwright.text.conversation import Conversation

app = new_app()
HELP = """\
/exit             end (so does Ctrl-D)
/clear            forget all turns
/system TEXT      start anew with this system message
/retry            answer the last message again
/save FILE        write the conversation as JSON
/params           show the sampling parameters; /params temperature=0.8 top_k=40 changes some
Ctrl-C            stops an answer, not the program"""


@app.command()
@expand
def chat(
    options: ModelOptions,
    params: SamplingParams,
    model: Annotated[
        str, typer.Argument(help="A checkpoint's path, a name from `genwright pull`, or random:NAME.")
    ] = DEFAULT,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
) -> None:
    """Talk with a model, its answers streamed; /help lists the commands."""
    from genwright.text.conversation import Conversation

    llm = options.load(model)
    if llm.tokenizer is None:
        raise UserError(f"{model} has no tokenizer, and chat needs one.")
    talk(Conversation(llm, llm.tokenizer, system), params)


def talk(conversation: "Conversation", params: SamplingParams) -> None:
    """Read, answer, repeat."""
    if sys.stdin.isatty():
        import readline  # noqa: F401 - gives input() a history and editing
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            continue
        try:
            if line == "/exit":
                return
            if line.startswith("/"):
                params = command(conversation, params, line) or params
            elif line:
                answer(conversation, line, params)
        except UserError as error:
            print(error, file=sys.stderr)


def answer(conversation: "Conversation", text: str, params: SamplingParams) -> None:
    """Stream an answer; Ctrl-C ends it after the step in flight and keeps what there is."""
    interrupted = False

    def stop(*_: object) -> None:
        nonlocal interrupted
        interrupted = True

    before = signal.signal(signal.SIGINT, stop)
    try:
        for piece in conversation.ask(text, params):
            print(piece.text, end="", flush=True)
            if interrupted:
                break
    finally:
        signal.signal(signal.SIGINT, before)
    print()


def command(conversation: "Conversation", params: SamplingParams, line: str) -> SamplingParams | None:
    """Carry out a slash command; returns the sampling parameters if it changed them."""
    verb, _, rest = line.partition(" ")
    rest = rest.strip()
    if verb == "/clear":
        conversation.restart()
    elif verb == "/system":
        conversation.restart(rest or None)
    elif verb == "/retry":
        text = conversation.retract()
        if text is None:
            raise UserError("there is no answer to try again.")
        answer(conversation, text, params)
    elif verb == "/save":
        save(conversation, rest)
    elif verb == "/params":
        return change(params, rest)
    elif verb == "/help":
        print(HELP)
    else:
        raise UserError(f"there is no command {verb}; /help lists them.")
    return None


def save(conversation: "Conversation", name: str) -> None:
    if not name:
        raise UserError("/save needs a file's name.")
    try:
        Path(name).write_text(json.dumps(conversation.messages, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{name} cannot be written: {error.strerror}.") from None
    print(f"{len(conversation.messages)} messages are in {name}.")


def change(params: SamplingParams, assignments: str) -> SamplingParams:
    """Sampling parameters with `name=value` pairs over them; shows the outcome."""
    values: dict[str, Any] = {}
    for pair in assignments.split():
        name, _, value = pair.partition("=")
        if name not in asdict(params):
            raise UserError(f"there is no parameter {name!r}; /params shows them.")
        try:
            values[name] = json.loads(value)
        except ValueError:
            raise UserError(f"{pair!r} should be name=value, with a number, true, false, null or JSON.") from None
    params = replace(params, **values)
    print(", ".join(f"{name}={value}" for name, value in asdict(params).items()))
    return params
