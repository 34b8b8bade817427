"""Conversation: turns with one model, each computing only what it adds."""

from collections.abc import Iterator
from typing import Any

from genwright.text.engine.request import Piece, SamplingParams
from genwright.text.llm import LLM
from genwright.text.tokenizer.tokenizer import Tokenizer


class Conversation:
    """Messages, and the token ids that spelled them, so that earlier turns are found in the prefix cache.

    An answer's text, encoded again, need not give the tokens that the model chose; so ids are kept as they were, and
    only text that the template adds behind them is encoded.
    """

    def __init__(self, llm: LLM, tokenizer: Tokenizer, system: str | None = None):
        self.llm, self.tokenizer = llm, tokenizer
        self.messages: list[dict[str, Any]] = []
        self._spelled, self._ids = "", [0][:0]  # the text so far, and its ids
        self.restart(system)

    def restart(self, system: str | None = None) -> None:
        """Forget all turns."""
        self.messages = [{"role": "system", "content": system}] if system else []
        self._spelled, self._ids = "", []

    def ask(self, text: str, params: SamplingParams) -> Iterator[Piece]:
        """Put a message and stream the answer; what came before an interrupt stays as the answer."""
        self.messages.append({"role": "user", "content": text})
        rendered = self.tokenizer.render(self.messages)
        prompt = self._encode(rendered)
        answer, ids = "", list[int]()
        try:
            for piece in self.llm.stream(prompt, params):
                answer += piece.text
                ids += piece.ids
                yield piece
        finally:
            self.messages.append({"role": "assistant", "content": answer})
            if ids and ids[-1] in self.llm.eos_ids:
                ids.pop()  # the template writes the end of a turn itself
            self._spelled, self._ids = rendered + answer, prompt + ids

    def retract(self) -> str | None:
        """Take back the last message and its answer; returns the message."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            return None
        self.messages.pop()
        self._spelled, self._ids = "", []  # the prefix cache still knows the turns before
        return str(self.messages.pop()["content"])

    def _encode(self, rendered: str) -> list[int]:
        if self._ids and rendered.startswith(self._spelled):
            return self._ids + self.tokenizer.encode(rendered[len(self._spelled) :], special=False)
        return self.tokenizer.encode(rendered, special=False)
