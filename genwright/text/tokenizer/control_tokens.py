"""Control tokens that a message spells: ordinary text, so that only the chat template writes real ones.

Before a conversation is rendered, every control token in its messages gets a mark after its first character. The
control tokens that are whole in the rendered text are then the template's own. A mark is a lone surrogate: no text that
can be encoded has one.
"""

import re
import secrets
from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer

from genwright.errors import UserError

MARK = "\ud800"
CONTROL_LOOK = re.compile(r"<\|.*\|>", re.DOTALL)  # some checkpoints forget to call such tokens special


class ControlTokens:
    """The control tokens of a vocabulary: text to id."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self.ids = ids
        texts = sorted(filter(None, ids), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, texts)) or "(?!)")

    def mark(self, value: Any) -> Any:
        """Plain data with a mark in each control token that its texts spell."""
        if isinstance(value, str):
            check_text(value)
            return self._pattern.sub(lambda found: f"{found[0][0]}{MARK}{found[0][1:]}", value)
        if isinstance(value, dict):
            return {self.mark(key): self.mark(item) for key, item in value.items()}
        return [self.mark(item) for item in value] if isinstance(value, list | tuple) else value

    def replace(self, text: str, spelling: Mapping[str, str]) -> str:
        """A marked text whose whole control tokens are spelled in another way, and without its marks."""
        return self._pattern.sub(lambda found: spelling[found[0]], text).replace(MARK, "")

    def check(self, text: str, ids: list[int]) -> list[int]:
        """Token ids of a marked text; refused if they hold more control tokens than the text has whole ones."""
        control = set(self.ids.values())
        if sum(token_id in control for token_id in ids) > len(self._pattern.findall(text)):
            raise UserError(
                "A message spells a control token that this model's vocabulary cannot write as ordinary text; "
                "leave it out, or allow control tokens."
            )
        return ids


class LiteralPipeline:
    """A copy of a `tokenizers` pipeline that reads control tokens only in a spelling that no message can know."""

    def __init__(self, backend: Tokenizer, control: ControlTokens) -> None:
        self._backend, self._control = Tokenizer.from_str(backend.to_str()), control
        secret = secrets.token_hex(16)
        self._spelling = {token: f"<{secret}{token_id}>" for token, token_id in control.ids.items()}
        added = backend.get_added_tokens_decoder()
        self._backend.add_special_tokens([_like(added[i], token, special=True) for token, i in control.ids.items()])
        self._backend.add_tokens([_like(added[i], self._spelling[token]) for token, i in control.ids.items()])
        self._backend.encode_special_tokens = True  # they are then ordinary text
        self._ids = {self._backend.token_to_id(self._spelling[token]): i for token, i in control.ids.items()}

    def encode(self, marked: str) -> list[int]:
        ids = self._backend.encode(self._control.replace(marked, self._spelling), add_special_tokens=False).ids
        return [self._ids.get(token_id, token_id) for token_id in ids]


def _like(token: AddedToken, content: str, special: bool = False) -> AddedToken:
    """A token that takes the same spaces around it."""
    return AddedToken(content, lstrip=token.lstrip, rstrip=token.rstrip, normalized=False, special=special)


def check_text(text: str) -> None:
    """Refuse what is no text in any encoding."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"The text has half a character (a lone surrogate) at position {error.start}.") from None
