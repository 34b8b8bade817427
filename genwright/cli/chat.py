"""`genwright chat`: talk with a model."""

import json
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genwright.cli.app import new_app
from genwright.cli.flags import expand
from genwright.cli.options import load
from genwright.cli.prompt import open_prompt
from genwright.errors import UserError
from genwright.text.catalogue import DEFAULT
from genwright.text.engine.request import SamplingParams
from genwright.text.settings import EngineConfig

if TYPE_CHECKING:
    from genwright.text.conversation import Conversation
    from genwright.text.engine.request import Piece

app = new_app()
HELP = """\
/exit             end (so does Ctrl-D)
/clear            forget all turns, but not the system message
/system TEXT      start anew with this system message, or without one
/retry            draw another answer to the last message
/trim             drop the oldest turns until half of the context is free
/save FILE        write the conversation as JSON
/params           show the sampling parameters; /params temperature=0.8 top_k=40 changes some
Ctrl-C            stops an answer, not the program"""
RETRY_TEMPERATURE = 0.7  # where the answer is otherwise greedy, and would be the same again


@app.command()
@expand
def chat(
    config: EngineConfig,
    params: Annotated[dict[str, Any], SamplingParams],
    model: Annotated[
        str, typer.Argument(help="A checkpoint's path, a name from `genwright pull`, or random:NAME.")
    ] = DEFAULT,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    context_shift: Annotated[
        bool, typer.Option("--context-shift", help="Drop the oldest turns when the context fills up.")
    ] = False,
) -> None:
    """Talk with a model, its answers streamed; /help lists the commands.

    Sampling parameters that are not given are those that the checkpoint recommends in its generation_config.json. An
    answer ends where the model ends it, or the context.
    """
    from genwright.text.conversation import Conversation

    llm = load(model, config)
    if llm.tokenizer is None:
        raise UserError(f"{model} has no tokenizer, and chat needs one.")
    llm.tokenizer.render([{"role": "user", "content": "Hi"}])  # refuses a checkpoint without a chat template
    chosen = llm.recommended_params(**{"max_new_tokens": llm.max_context, **params})
    Session(Conversation(llm, llm.tokenizer, system, context_shift), chosen).talk()


class Session:
    """Reads, answers, repeats."""

    def __init__(self, conversation: "Conversation", params: SamplingParams):
        self.conversation, self.params = conversation, params
        self.retries = 0  # of the last message
        self.commands: dict[str, Callable[[str], None]] = {
            "/clear": lambda _: conversation.clear(),
            "/system": conversation.restart,
            "/retry": lambda _: self.retry(),
            "/trim": lambda _: self.trim(),
            "/save": self.save,
            "/params": self.change,
            "/help": lambda _: print(HELP),
        }

    def talk(self) -> None:
        read = open_prompt("> ")
        if sys.stdin.isatty():
            print("/help lists the commands; /exit or Ctrl-D ends.", file=sys.stderr)
        while True:
            try:
                text = read().strip()
                if text == "/exit":
                    return
                self.take(text)
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
            except UserError as error:
                print(error, file=sys.stderr)

    def take(self, text: str) -> None:
        """Carry out a command, or answer a message; a pasted text may well begin with a slash."""
        verb, *rest = text.split(maxsplit=1) or [""]
        if verb in self.commands:
            self.commands[verb]("".join(rest))
        elif text.startswith("/") and "\n" not in text:
            raise UserError(f"There is no command {verb}; /help lists them.")
        elif text:
            self.retries = 0
            self.answer(self.conversation.ask(text, self.params))

    def answer(self, pieces: "Generator[Piece, None, None]") -> None:
        """Stream an answer; Ctrl-C ends it after the step in flight and keeps what there is."""
        interrupted = False

        def stop(*_: object) -> None:
            nonlocal interrupted
            interrupted = True

        before = signal.signal(signal.SIGINT, stop)
        try:
            for piece in pieces:
                print(piece.text, end="", flush=True)
                if interrupted:
                    break
        finally:
            pieces.close()
            signal.signal(signal.SIGINT, before)
        print()
        for note in self._notes():
            print(f"({note})", file=sys.stderr)

    def _notes(self) -> Iterator[str]:
        """What a person should know about the answer just given."""
        talk, limit = self.conversation, self.conversation.llm.max_context
        if talk.dropped:
            yield f"The oldest turns were dropped to make room: {talk.dropped}."
        if talk.finish_reason == "length" and talk.tokens >= limit:
            yield f"The context of {limit:,} tokens is full, so the answer was cut off; /trim drops the oldest turns."
        elif talk.finish_reason == "length":
            count = self.params.max_new_tokens
            yield f"The answer was cut off after {count} tokens; /params max_new_tokens=... allows more."
        elif talk.tokens > limit * 3 // 4:
            yield f"The conversation fills {talk.tokens:,} of {limit:,} tokens; /trim drops the oldest turns."

    def retry(self) -> None:
        """Answer again by another seed."""
        self.retries += 1
        params = self.params
        if params.seed is not None:
            params = replace(params, seed=params.seed + self.retries)
        if params.temperature == 0:
            print(f"(The greedy answer would be the same; drawn at temperature {RETRY_TEMPERATURE}.)", file=sys.stderr)
            params = replace(params, temperature=RETRY_TEMPERATURE)
        self.answer(self.conversation.retry(params))

    def trim(self) -> None:
        dropped = self.conversation.trim()
        left = sum(message["role"] == "user" for message in self.conversation.messages)
        print(f"Dropped the oldest turns: {dropped}; left: {left}.")

    def save(self, name: str) -> None:
        if not name:
            raise UserError("/save needs a file's name.")
        messages = self.conversation.messages
        try:
            text = json.dumps(messages, indent=2, ensure_ascii=False) + "\n"
            Path(name).expanduser().write_text(text, encoding="utf-8")
        except OSError as error:
            raise UserError(f"{name} cannot be written: {error.strerror}.") from None
        print(f"Messages in {name}: {len(messages)}.")

    def change(self, assignments: str) -> None:
        self.params = changed(self.params, assignments)
        print(", ".join(f"{name}={value}" for name, value in asdict(self.params).items()))


def changed(params: SamplingParams, assignments: str) -> SamplingParams:
    """Sampling parameters with `name=value` pairs over them."""
    values: dict[str, Any] = {}
    for pair in assignments.split():
        name, _, value = pair.partition("=")
        if name not in asdict(params):
            raise UserError(f"There is no parameter {name!r}; /params shows them.")
        try:
            values[name] = json.loads(value)
        except ValueError:
            raise UserError(f"{pair!r} should be name=value, with a number, true, false, null or JSON.") from None
    return replace(params, **values)
