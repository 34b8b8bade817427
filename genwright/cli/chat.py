"""`genwright chat`: a conversation with a model."""

import json
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genwright.arguments import counted, short
from genwright.cli.app import new_app
from genwright.cli.flags import expand
from genwright.cli.options import AlsoModel, ModelArgument, chosen_model, load
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
/exit, /quit      quit (so does Ctrl-D)
/clear            drop all turns, but not the system message
/system TEXT      start a new conversation with this system message, or without one
/retry            generate another answer to the last message
/trim             drop the oldest turn, and more until half of the context is free
/save FILE        write the conversation as JSON
/params           show the sampling parameters; /params temperature=0.8 top_k=40 changes some
Ctrl-C            stops an answer, not the program"""
# What a chat has no use for: an answer is one text, and nobody else asks the model.
UNUSED = frozenset({"n", "logprobs", "prompt_logprobs", "priority"})
PARAMETERS = [each.name for each in fields(SamplingParams) if each.metadata and each.name not in UNUSED]
RETRY_TEMPERATURE = 0.7  # for /retry at temperature 0, where the answer would be the same again


@app.command()
@expand
def chat(
    config: EngineConfig,
    params: Annotated[dict[str, Any], SamplingParams, UNUSED],
    model: ModelArgument = DEFAULT,
    also_model: AlsoModel = None,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    context_shift: Annotated[
        bool, typer.Option("--context-shift", help="Drop the oldest turns when the context fills up.")
    ] = False,
) -> None:
    """Chat with a model; /help lists the commands.

    Sampling parameters default to those in the checkpoint's generation_config.json. An answer ends where the model
    ends it, or when the context is full.
    """
    from genwright.text.conversation import Conversation

    model = chosen_model(model, also_model)
    llm = load(model, config)
    if llm.tokenizer is None:
        raise UserError(f"{model} has no tokenizer, which chat needs.")
    llm.tokenizer.render([{"role": "user", "content": "Hi"}])  # refuses a checkpoint without a chat template
    chosen = llm.recommended_params(**{"max_new_tokens": llm.max_context, **params})
    Session(Conversation(llm, llm.tokenizer, system, context_shift), chosen).talk()


class Session:
    """Reads messages and commands, and prints the answers."""

    def __init__(self, conversation: "Conversation", params: SamplingParams):
        self.conversation, self.params = conversation, params
        self.retries = 0  # of the last message
        self.saved: set[Path] = set()  # files, which may be saved to again
        self.ended = False
        self.commands: dict[str, Callable[[str], None]] = {
            "/clear": lambda _: conversation.clear(),
            "/system": conversation.restart,
            "/retry": lambda _: self.retry(),
            "/trim": lambda _: self.trim(),
            "/save": self.save,
            "/params": self.change,
            "/help": lambda _: print(HELP),
            "/exit": lambda _: self.end(),
            "/quit": lambda _: self.end(),
        }

    def talk(self) -> None:
        # `_run` makes SIGTERM a KeyboardInterrupt, which ends only an answer or a line here.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
        read = open_prompt("> ")
        if sys.stdin.isatty():
            print("/help lists the commands; /exit or Ctrl-D quits.", file=sys.stderr)
        while not self.ended:
            try:
                self.take(read().strip())
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
            except UserError as error:
                print(error, file=sys.stderr)

    def end(self) -> None:
        self.ended = True

    def take(self, text: str) -> None:
        """Run a command or answer a message; a text of several lines is a message even if it begins with a slash."""
        verb, *rest = text.split(maxsplit=1) or [""]
        if verb in self.commands:
            self.commands[verb]("".join(rest))
        elif text.startswith("/") and "\n" not in text:
            raise UserError(f"There is no command {verb}; /help lists them.")
        elif text:
            self.retries = 0
            self.answer(self.conversation.ask(text, self.params))

    def answer(self, pieces: "Generator[Piece, None, None]") -> None:
        """Stream an answer; Ctrl-C stops it after the current step and keeps the text so far."""
        interrupted = False

        def stop(*_: object) -> None:
            nonlocal interrupted
            interrupted = True
            self.conversation.stop()

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
        """Notes to print after an answer."""
        tokens, limit = self.conversation.tokens, self.conversation.llm.max_context
        cut_off = self.conversation.finish_reason == "length"
        if self.conversation.dropped:
            yield f"The oldest turns were dropped to make room: {self.conversation.dropped}."
        if cut_off and tokens >= limit:
            yield f"The context of {limit:,} tokens is full, so the answer was cut off; /trim drops the oldest turns."
        elif cut_off:
            maximum = self.params.max_new_tokens
            cut = f"The answer was cut off after {counted(maximum, 'token')}"
            yield f"{cut}; /params max_new_tokens=... allows more."
        elif tokens > limit * 3 // 4:
            yield f"The conversation fills {tokens:,} of {limit:,} tokens; /trim drops the oldest turns."

    def retry(self) -> None:
        """Answer the last message again with another seed."""
        self.retries += 1
        params = self.params
        if params.seed is not None:
            params = replace(params, seed=params.seed + self.retries)
        greedy = params.temperature == 0
        pieces = self.conversation.retry(replace(params, temperature=RETRY_TEMPERATURE) if greedy else params)
        if greedy:
            print(f"(A greedy answer would be the same; sampled at temperature {RETRY_TEMPERATURE}.)", file=sys.stderr)
        self.answer(pieces)

    def trim(self) -> None:
        dropped = self.conversation.trim()
        left = sum(message["role"] == "user" for message in self.conversation.messages)
        print(f"Dropped the oldest turns: {dropped}; left: {left}.")

    def save(self, name: str) -> None:
        if not name:
            raise UserError("/save needs a file name, as in /save chat.json.")
        if not self.conversation.messages:
            raise UserError("There is nothing to save yet.")
        path = Path(os.path.realpath(os.path.expanduser(name)))
        if os.path.lexists(path) and path not in self.saved:
            raise UserError(f"{name} {'is a folder' if path.is_dir() else 'exists already'}; save to another file.")
        text = json.dumps(self.conversation.messages, indent=2, ensure_ascii=False) + "\n"
        try:
            # A lone surrogate (half a character), as of a --system that is not UTF-8, is written as a JSON escape.
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise UserError(f"{name} cannot be written: {error.strerror}.") from None
        self.saved.add(path)
        print(f"Wrote {counted(len(self.conversation.messages), 'message')} to {name}.")

    def change(self, assignments: str) -> None:
        self.params = changed(self.params, assignments)
        print(", ".join(f"{name}={getattr(self.params, name)}" for name in PARAMETERS))


def changed(params: SamplingParams, assignments: str) -> SamplingParams:
    """Sampling parameters with the changes of `name=value` pairs."""
    from genwright.text.batch import with_token_ids

    values: dict[str, Any] = {}
    while assignments := assignments.strip():
        name, value = (part.strip() for part in assignments.partition("=")[::2])
        if name not in PARAMETERS:
            raise UserError(f"There is no parameter {short(name)}; /params shows them.")
        try:
            values[name], end = json.JSONDecoder().raw_decode(value)
        except (ValueError, RecursionError):
            raise UserError(
                f"A change must be name=value, where value is JSON such as 0.8 or true, not {short(assignments)}."
            ) from None
        assignments = value[end:]
    return replace(params, **with_token_ids(values))
