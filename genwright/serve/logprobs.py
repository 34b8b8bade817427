"""Log-probabilities in the forms of OpenAI's chat completions and completions."""

from collections.abc import Iterable, Sequence
from typing import Any

from genwright.text.engine.request import Logprob
from genwright.text.tokenizer.tokenizer import Tokenizer

LOWEST = -9999.0  # in place of minus infinity, which JSON does not have


class TokenTexts:
    """The text and bytes of single tokens."""

    def __init__(self, tokenizer: Tokenizer | None):
        self._tokenizer = tokenizer

    def text(self, token_id: int) -> str:
        return self.bytes(token_id).decode("utf-8", "replace")

    def bytes(self, token_id: int) -> bytes:
        if self._tokenizer is None:
            return f"{token_id} ".encode()
        text = self._tokenizer.token_text(token_id)
        return text if isinstance(text, bytes) else text.encode("utf-8", "replace")

    def chat(self, logprobs: Iterable[Logprob]) -> list[dict[str, Any]]:
        """`choices[].logprobs.content` of a chat completion."""
        return [
            {**self._entry(each.id, each.logprob), "top_logprobs": [self._entry(*pair) for pair in each.top.items()]}
            for each in logprobs
        ]

    def completion(self, logprobs: Sequence[Logprob | None], ids: Sequence[int], offset: int) -> dict[str, Any]:
        """`choices[].logprobs` of a completion; `ids` has the tokens, and the text before them `offset` characters."""
        offsets = []
        for token_id in ids:
            offsets.append(offset)
            offset += sum(byte & 0xC0 != 0x80 for byte in self.bytes(token_id))  # characters that begin in it
        return {
            "tokens": [self.text(token_id) for token_id in ids],
            "token_logprobs": [None if each is None else max(each.logprob, LOWEST) for each in logprobs],
            "top_logprobs": [None if each is None else self._alternatives(each) for each in logprobs],
            "text_offset": offsets,
        }

    def _alternatives(self, logprob: Logprob) -> dict[str, float]:
        """The alternatives and the token itself, by text; of tokens with the same text, the first is kept."""
        found: dict[str, float] = {}
        for token_id, value in (*logprob.top.items(), (logprob.id, logprob.logprob)):
            found.setdefault(self.text(token_id), max(value, LOWEST))
        return found

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self.bytes(token_id)
        text = data.decode("utf-8", "replace")
        return {"id": token_id, "token": text, "bytes": list(data), "logprob": max(logprob, LOWEST)}

    def prompt(self, logprobs: Sequence[Logprob | None]) -> list[dict[str, Any] | None]:
        """Our extension `prompt_logprobs`: one entry per token, null for the first."""
        return [None if each is None else self.chat([each])[0] for each in logprobs]
