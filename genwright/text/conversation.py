"""Conversation: turns with a model; each turn computes only its new tokens."""

from collections.abc import Generator
from contextlib import closing
from typing import Any

from genwright.errors import UserError
from genwright.text.engine.request import STOPPED_EARLY, Piece, Request, SamplingParams
from genwright.text.llm import LLM
from genwright.text.tokenizer.chat_template import Messages
from genwright.text.tokenizer.tokenizer import Tokenizer

Pieces = Generator[Piece, None, None]


class Conversation:
    """The messages of a chat, with their token ids, so that earlier turns are found in the prefix cache.

    Encoding an answer's text again may give other tokens than the model generated. So the ids are kept, and only the
    text that the template adds after them is encoded. With `context_shift` the oldest turns are dropped when a message
    would leave less than a quarter of the context for its answer.
    """

    def __init__(self, llm: LLM, tokenizer: Tokenizer, system: str | None = None, context_shift: bool = False):
        self.llm, self.tokenizer, self.context_shift = llm, tokenizer, context_shift
        self.messages: Messages = []
        self.finish_reason: str | None = None  # of the last answer
        self.tokens = 0  # of all messages, known after an answer
        self.dropped = 0  # turns that were dropped for the last answer
        self._ids: list[int] = []  # of the conversation so far, whose text is `_rendered`
        self._request: Request | None = None  # of the last answer
        self.restart(system)

    def restart(self, system: str | None) -> None:
        """Drop all turns and start with this system message."""
        self._set([{"role": "system", "content": system}] if system else [])

    def clear(self) -> None:
        """Drop all turns and keep the system message."""
        self._set([message for message in self.messages if message["role"] == "system"])

    def trim(self) -> int:
        """Drop at least one turn, the oldest first, until half of the context is free; returns how many."""
        kept = self._without_oldest(self.messages)
        dropped = (len(self.messages) - len(kept)) // 2
        if not dropped:
            raise UserError("There is no turn to drop.")
        self._set(kept)
        return dropped

    def ask(self, text: str, params: SamplingParams) -> Pieces:
        """Send a message and stream the answer; after an interrupt, the text so far is the answer.

        A message that does not fit, or an answer that fails, raises an error and leaves the conversation unchanged.
        """
        return self._answer(self.messages, text, params)

    def retry(self, params: SamplingParams) -> Pieces:
        """Answer the last message again."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            raise UserError("There is no answer yet to generate again.")
        return self._answer(self.messages[:-2], self.messages[-2]["content"], params)

    def stop(self) -> None:
        """Stop the answer that is being streamed, after the current step; a signal handler may call this."""
        if self._request is not None:
            self.llm.loop.cancel([self._request])

    def _answer(self, before: Messages, text: str, params: SamplingParams) -> Pieces:
        whole = messages = [*before, {"role": "user", "content": text}]
        limit = self.llm.max_context
        if self.context_shift and self._count(whole) > limit * 3 // 4:
            messages = self._without_oldest(whole)
        rendered = self.tokenizer.render(messages, mark=True)
        prompt = self._encode(rendered)
        if len(prompt) >= limit:
            raise self._too_long(before, messages[-1], len(prompt))
        request = self._request = self.llm.requests(prompt, params)[0]
        answer, ids, reason = "", list(prompt), "cancelled"
        with closing(self.llm.follow([request])) as pieces:
            try:
                for _, piece in pieces:
                    answer, reason = answer + piece.text, piece.finish_reason or reason
                    ids += piece.ids
                    yield piece
            except GeneratorExit:
                pass  # the caller stopped the answer
        if reason == "error":
            raise UserError(STOPPED_EARLY)
        self._set([*messages, {"role": "assistant", "content": answer}])
        self.dropped, self.finish_reason = (len(whole) - len(messages)) // 2, reason
        self.tokens = len(ids)
        if reason == "stop" and ids[-1] in request.ends:
            ids = ids[:-1]  # the template writes the end-of-turn token
        elif reason != "length":
            return  # after a stop string or an interrupt, the ids contain more text than the answer
        self._rendered, self._ids = rendered + self.tokenizer.mark(answer), ids

    def _too_long(self, before: Messages, message: dict[str, Any], tokens: int) -> UserError:
        """What can be shortened: the conversation, the message, or also the system message."""
        system = [each for each in before if each["role"] == "system"]
        alone, limit = self._count([*system, message]), self.llm.max_context
        if alone < limit:
            what, help = "With this message the conversation has", "use /trim to drop the oldest turns, or /clear"
        elif system and self._count([message]) < limit:
            what, help = "With the system message this one has", "shorten one of them (/system sets the former)"
        else:
            what, help = "The message has", "send a shorter one"
        tokens = tokens if alone < limit else alone
        return UserError(f"{what} {tokens:,} tokens, but the context holds {limit:,} with the answer; {help}.")

    def _set(self, messages: Messages) -> None:
        self.messages = messages
        self.tokens, self._rendered, self._ids = 0, "", []  # the prefix cache still has the earlier turns

    def _without_oldest(self, messages: Messages) -> Messages:
        """Drop at least one turn, if there is one, the oldest first, until the messages fit in half of the context."""
        first = int(bool(messages) and messages[0]["role"] == "system")
        while len(messages) >= first + 2:
            messages = [*messages[:first], *messages[first + 2 :]]
            if len(messages) < first + 2 or self._count(messages) <= self.llm.max_context // 2:
                break
        return messages

    def _count(self, messages: Messages) -> int:
        return len(self._encode(self.tokenizer.render(messages, mark=True)))

    def _encode(self, rendered: str) -> list[int]:
        if self._ids and rendered.startswith(self._rendered):
            return self._ids + self.tokenizer.encode_rendered(rendered[len(self._rendered) :])
        return self.tokenizer.encode_rendered(rendered)
