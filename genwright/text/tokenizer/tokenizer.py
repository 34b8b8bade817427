"""One tokenizer class over tokenizer.json, SentencePiece, tiktoken and GGUF vocabularies."""

import codecs
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from genwright.errors import UserError
from genwright.text.tokenizer import vocabularies
from genwright.text.tokenizer.chat_template import ChatTemplate, Messages, find_template, template_names
from genwright.text.tokenizer.control_tokens import MARK, check_text
from genwright.text.tokenizer.libraries import Pipeline, SentencePiece
from genwright.text.tokenizer.vocabularies import Config

_MAX_HELD = 8  # tokens; a replacement character (U+FFFD) that remains after this many is part of the text


class Tokenizer:
    """Converts text to token ids and back, as the model's own tokenizer does."""

    def __init__(self, backend: tokenizers.Tokenizer | bytes, config: Config) -> None:
        """`backend` is a `tokenizers` pipeline or a serialized SentencePiece model; `config` tokenizer_config.json."""
        self._vocabulary: Pipeline | SentencePiece = (
            SentencePiece(backend, config) if isinstance(backend, bytes) else Pipeline(backend, config)
        )
        ids = {key: self._vocabulary.find(token) for key, token in self._vocabulary.special_tokens.items()}
        self.bos_id = ids.get("bos_token")
        ends = [ids.get(key) for key in ("eos_token", "eot_token", "eom_token")]
        self.eos_ids = tuple(dict.fromkeys(token_id for token_id in ends if token_id is not None))
        self.chat_template: str | None = config.get("chat_template")

    def __getstate__(self) -> dict[str, Any]:
        """Its state for another process, which compiles the chat template again."""
        return {name: value for name, value in self.__dict__.items() if name != "_template"}

    @property
    def vocab_size(self) -> int:
        return self._vocabulary.size

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Encode a text, special tokens in it included; `special` adds BOS and EOS where the model expects them."""
        check_text(text)
        return self._vocabulary.encode(text, special)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        ids = [int(token_id) for token_id in ids]
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                raise UserError(f"Token ids must be between 0 and {self.vocab_size - 1:,}, not {token_id}.")
        if skip_special:
            ids = [token_id for token_id in ids if token_id not in self._vocabulary.special]
        return self._vocabulary.decode(ids)

    def token_text(self, token_id: int) -> str | bytes:
        """The text of a single token with its leading space, or its bytes if it is only part of a character."""
        if not 0 <= token_id < self.vocab_size:  # a model's vocabulary may be padded
            return f"<{token_id}>"
        utf8 = self._vocabulary.utf8(token_id)
        if utf8 is None:
            return self._vocabulary.token(token_id).replace("\u2581", " ")  # SentencePiece's sign for a space
        try:
            return utf8.decode()
        except UnicodeDecodeError:
            return utf8

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token inside a text; those of a special token are its name."""
        text = self.token_text(token_id)
        if isinstance(text, bytes):
            return text
        byte = re.fullmatch("<0x([0-9A-F]{2})>", text)
        return bytes([int(byte[1], 16)]) if byte else text.encode()

    def token(self, token_id: int) -> str:
        """The name of a token in its vocabulary; empty if the id has none."""
        return self._vocabulary.token(token_id)

    def token_id(self, token: str) -> int | None:
        """The id of a token by its name; None if the vocabulary has no such token."""
        return self._vocabulary.find(token)

    @property
    def special_ids(self) -> frozenset[int]:
        return self._vocabulary.special

    def serialized(self) -> str | None:
        """The text of a tokenizer.json; None for a SentencePiece model."""
        return self._vocabulary.serialized()

    @property
    def sentencepiece(self) -> SentencePiece | None:
        """The SentencePiece vocabulary; None if it is a tokenizer.json."""
        return self._vocabulary if isinstance(self._vocabulary, SentencePiece) else None

    def encode_inside(self, text: str) -> list[int]:
        """Encode text that follows other text: no BOS, no space before it."""
        prefix = self._vocabulary.encode("\n", special=False)
        ids = self._vocabulary.encode("\n" + text, special=False)
        return ids[len(prefix) :]

    def stream(self, shown: frozenset[int] = frozenset()) -> "Detokenizer":
        """Decode token ids one at a time: call `push` for each, then `end`; special tokens are left out but `shown`."""
        return Detokenizer(self, shown)

    def chat(self, messages: Messages, allow_control_tokens: bool = False, tools: Messages | None = None) -> list[int]:
        """Token ids of a conversation, rendered by the chat template with the prompt for the assistant's answer.

        Control tokens within a message are encoded as ordinary text, unless `allow_control_tokens` is set.
        """
        return self.encode_rendered(self.render(messages, not allow_control_tokens, tools))

    def render(self, messages: Messages, mark: bool = False, tools: Messages | None = None) -> str:
        """Render a conversation as text; `mark` marks control tokens in its messages for `encode_rendered`."""
        return self._template.render(messages, self._vocabulary.special_tokens, self.mark if mark else None, tools)

    def mark(self, value: Any) -> Any:
        """Mark the control tokens in a message, or in a list of messages, as ordinary text."""
        return self._vocabulary.control.mark(value)

    def encode_rendered(self, text: str) -> list[int]:
        """Encode a rendered conversation or a part of it; marked control tokens become ordinary text."""
        if MARK not in text:
            return self.encode(text, special=False)
        return self._vocabulary.control.check(text, self._vocabulary.encode_marked(text))

    def use_template(self, name_or_file: str) -> None:
        """Replace the checkpoint's chat template by a named one or by a file."""
        self.chat_template = find_template(name_or_file)
        self._template = ChatTemplate(self.chat_template)

    @cached_property
    def _template(self) -> ChatTemplate:
        if not self.chat_template:
            names = ", ".join(template_names())
            raise UserError(f"The checkpoint has no chat template; pass --chat-template {names} or a Jinja file.")
        return ChatTemplate(self.chat_template)

    def save(self, folder: Path) -> None:
        """Write the files that `from_folder` and transformers read."""
        folder.mkdir(parents=True, exist_ok=True)
        config = self._vocabulary.save(folder) | self._vocabulary.special_tokens
        if self.chat_template:
            config["chat_template"] = self.chat_template
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer | None":
        """Read the tokenizer of a checkpoint's folder; None if there is none."""
        try:
            found = vocabularies.from_folder(folder)
            return cls(*found) if found else None
        except (UserError, OSError, UnicodeError) as error:
            raise UserError(f"{folder}: {error}") from error

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer | None":
        """Read the tokenizer of a GGUF file's metadata; None if there is none."""
        if metadata.get("tokenizer.ggml.model") in (None, "", "none", "no_vocab"):  # as llama.cpp writes
            return None
        return cls(*vocabularies.from_gguf(metadata))


class Detokenizer:
    """Decodes token ids one at a time: the texts that `push` and `end` return, joined, equal `decode` of all ids.

    Text is returned as soon as no later token can change it. Only the last few tokens are decoded again, after the
    tokens of the piece before them, because some decoders treat the beginning of a text differently.
    """

    def __init__(self, tokenizer: Tokenizer, shown: frozenset[int] = frozenset()) -> None:
        self._vocabulary = tokenizer._vocabulary
        self._hidden = tokenizer.special_ids - shown
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._context: list[int] = []
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        if token_id < 0 or token_id in self._hidden:
            return ""
        # A model's vocabulary may be padded beyond the tokenizer's; the ids of the padding have no bytes and no text.
        if (utf8 := self._vocabulary.utf8(token_id)) is not None:
            return self._utf8.decode(utf8)
        if token_id >= self._vocabulary.size:
            return ""
        self._held.append(token_id)
        return "" if self._vocabulary.unfinished(token_id) else self._text(final=False)

    def end(self) -> str:
        """Return the text held back so far."""
        return self._utf8.decode(b"", final=True) + self._text(final=True)

    def _text(self, final: bool) -> str:
        before = self._vocabulary.decode(self._context)
        text = self._vocabulary.decode(self._context + self._held)[len(before) :]
        if not final and text.endswith("\ufffd") and len(self._held) < _MAX_HELD:
            return ""  # the last token may be part of a character
        if text:
            self._context, self._held = self._held, []
        return text
