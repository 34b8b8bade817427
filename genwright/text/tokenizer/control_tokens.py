"""Encodes control tokens within chat messages as ordinary text, so that only the chat template writes real ones.

Before a conversation is rendered, a mark is put after the first character of each control token in its messages. The
unmarked control tokens in the rendered text are then the template's. The mark is a lone surrogate, which cannot occur
in valid text.
"""

import re
import secrets
from collections.abc import Collection, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer

from genwright.errors import UserError

MARK = "\ud800"
_CONTROL_FORM = re.compile(r"<\|.*\|>", re.DOTALL)


class ControlTokens:
    """The control tokens of a vocabulary: the special ones, and those like <|im_end|> that are not declared special."""

    def __init__(self, added: Mapping[str, int], special: Collection[int]) -> None:
        self.ids = {text: i for text, i in added.items() if i in special or _CONTROL_FORM.fullmatch(text)}
        texts = sorted(filter(None, self.ids), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, texts)) or "(?!)")

    def mark(self, value: Any) -> Any:
        """Put a mark into each control token in a string, or in the strings of lists and dicts."""
        if isinstance(value, str):
            check_text(value)
            return self._pattern.sub(lambda found: f"{found[0][0]}{MARK}{found[0][1:]}", value)
        if isinstance(value, dict):
            return {self.mark(key): self.mark(item) for key, item in value.items()}
        return [self.mark(item) for item in value] if isinstance(value, list | tuple) else value

    def replace(self, text: str, spelling: Mapping[str, str]) -> str:
        """Write the unmarked control tokens of a text as `spelling` says, then remove the marks."""
        return self._pattern.sub(lambda found: spelling[found[0]], text).replace(MARK, "")

    def check(self, text: str, ids: list[int]) -> list[int]:
        """Refuse the ids of a marked text if they hold more control tokens than the text has unmarked ones."""
        control = set(self.ids.values())
        if sum(token_id in control for token_id in ids) > len(self._pattern.findall(text)):
            raise UserError(
                "A message holds a control token that this model's vocabulary cannot encode as ordinary text; "
                "remove it, or allow control tokens."
            )
        return ids


class MarkedTextEncoder:
    """A copy of a `tokenizers` pipeline whose control tokens have random names, which no message can contain."""

    def __init__(self, backend: Tokenizer, control: ControlTokens) -> None:
        self._backend, self._control = Tokenizer.from_str(backend.to_str()), control
        secret = secrets.token_hex(16)
        self._spelling = {token: f"<{secret}{token_id}>" for token, token_id in control.ids.items()}
        added = backend.get_added_tokens_decoder()
        self._backend.add_special_tokens([_like(added[i], token, special=True) for token, i in control.ids.items()])
        self._backend.add_tokens([_like(added[i], self._spelling[token]) for token, i in control.ids.items()])
        self._backend.encode_special_tokens = True  # as ordinary text
        self._ids = {self._backend.token_to_id(self._spelling[token]): i for token, i in control.ids.items()}

    def encode(self, marked: str) -> list[int]:
        ids = self._backend.encode(self._control.replace(marked, self._spelling), add_special_tokens=False).ids
        return [self._ids.get(token_id, token_id) for token_id in ids]


def _like(token: AddedToken, content: str, special: bool = False) -> AddedToken:
    """A token with the same treatment of surrounding spaces."""
    return AddedToken(content, lstrip=token.lstrip, rstrip=token.rstrip, normalized=False, special=special)


def check_text(text: str) -> None:
    """Refuse text with lone surrogates, which cannot be encoded."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"The text has a lone surrogate (half a character) at position {error.start}.") from None
