"""One tokenizer class over tokenizer.json, SentencePiece, tiktoken and GGUF vocabularies."""

import codecs
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers

from genwright.errors import UserError
from genwright.text.tokenizer import vocabularies
from genwright.text.tokenizer.chat_template import ChatTemplate, find_template, template_names
from genwright.text.tokenizer.control_tokens import CONTROL_LOOK, MARK, ControlTokens, LiteralPipeline, check_text
from genwright.text.tokenizer.vocabularies import BYTE_SPELLING, NAMES, Config

_SPELLED_BYTE = {char: byte for byte, char in BYTE_SPELLING.items()}
_REPLACEMENT = "\ufffd"  # what bytes that are no UTF-8 (yet) decode to


class Tokenizer:
    """Text to token ids and back, as the model's own tokenizer does it."""

    def __init__(self, backend: tokenizers.Tokenizer | bytes, config: Config) -> None:
        """Over a `tokenizers` pipeline or a SentencePiece model's bytes; `config` is as in tokenizer_config.json."""
        self._vocabulary: _Pipeline | _SentencePiece = (
            _SentencePiece(backend, config) if isinstance(backend, bytes) else _Pipeline(backend, config)
        )
        self.vocab_size = self._vocabulary.size
        ids = {key: self._vocabulary.find(token) for key, token in self._vocabulary.names.items()}
        self.bos_id = ids.get("bos_token")
        ends = [ids.get(key) for key in ("eos_token", "eot_token", "eom_token")]
        self.eos_ids = tuple(dict.fromkeys(token_id for token_id in ends if token_id is not None))
        self.chat_template: str | None = config.get("chat_template")

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of a text, special tokens in it read as such; `special` adds BOS and EOS where the model does."""
        check_text(text)
        return self._vocabulary.encode(text, special)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        ids = self._checked(ids)
        if skip_special:
            ids = [token_id for token_id in ids if token_id not in self._vocabulary.special]
        return self._vocabulary.decode(ids)

    def spelling(self, token_id: int) -> str | bytes:
        """One token by itself, for people to read: its space kept, and bytes where it is but part of a character."""
        if not 0 <= token_id < self.vocab_size:  # a model's vocabulary may be padded
            return f"<{token_id}>"
        utf8 = self._vocabulary.utf8(token_id)
        if utf8 is None:
            return self._vocabulary.token(token_id).replace("\u2581", " ")  # SentencePiece's sign for a space
        try:
            return utf8.decode()
        except UnicodeDecodeError:
            return utf8

    def stream(self) -> "Detokenizer":
        """Text of one id after the other: `push` each, then `end`."""
        return Detokenizer(self)

    def chat(self, messages: list[dict[str, Any]], allow_control_tokens: bool = False) -> list[int]:
        """Token ids of a conversation, rendered by the chat template up to where the assistant answers.

        A control token that a message spells is ordinary text, unless `allow_control_tokens`.
        """
        return self.encode_rendered(self.render(messages, not allow_control_tokens))

    def render(self, messages: list[dict[str, Any]], mark: bool = False) -> str:
        """The text of a conversation, up to where the assistant answers, `mark`ed for `encode_rendered` if asked."""
        return self._template.render(messages, self._vocabulary.names, self.mark if mark else None)

    def mark(self, value: Any) -> Any:
        """Messages, or one's text, in which control tokens are marked as ordinary text."""
        return self._vocabulary.control.mark(value)

    def encode_rendered(self, text: str) -> list[int]:
        """Token ids of a rendered conversation, or of a part of it; marked control tokens are ordinary text."""
        if MARK not in text:
            return self.encode(text, special=False)
        return self._vocabulary.control.check(text, self._vocabulary.encode_marked(text))

    def use_template(self, name_or_file: str) -> None:
        """Chat by one of the named templates or by a file, whatever the checkpoint says."""
        self.chat_template = find_template(name_or_file)
        self._template = ChatTemplate(self.chat_template)

    @cached_property
    def _template(self) -> ChatTemplate:
        if not self.chat_template:
            names = ", ".join(template_names())
            raise UserError(f"The checkpoint has no chat template; choose one by --chat-template: {names}, or a file.")
        return ChatTemplate(self.chat_template)

    def _checked(self, ids: Sequence[int]) -> list[int]:
        ids = [int(token_id) for token_id in ids]
        if ids and not (min(ids) >= 0 and max(ids) < self.vocab_size):
            bad = next(token_id for token_id in ids if not 0 <= token_id < self.vocab_size)
            raise UserError(f"Token id {bad} is outside the vocabulary of {self.vocab_size} tokens.")
        return ids

    def save(self, folder: Path) -> None:
        """Write the files that `from_folder` and transformers read."""
        folder.mkdir(parents=True, exist_ok=True)
        config = self._vocabulary.save(folder) | self._vocabulary.names
        if self.chat_template:
            config["chat_template"] = self.chat_template
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer | None":
        """The tokenizer of a checkpoint's folder, or None when it has none."""
        try:
            found = vocabularies.from_folder(folder)
            return cls(*found) if found else None
        except (UserError, OSError, UnicodeError) as error:
            raise UserError(f"{folder}: {error}") from error

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer | None":
        """The tokenizer of a GGUF file's metadata, or None when it has none."""
        without = metadata.get("tokenizer.ggml.model") in (None, "", "no_vocab")  # the last as llama.cpp writes it
        return None if without else cls(*vocabularies.from_gguf(metadata))


class Detokenizer:
    """Token ids to text, one by one: what `push` and `end` return, joined, is `decode` of all ids.

    Text comes as soon as no later token can change it. Only the last few tokens are decoded again: what the last piece
    of text came from goes in front, for decoders that treat the beginning of a text in their own way.
    """

    _LONGEST_HOLD = 8  # tokens; a replacement character that stays this long is part of the text

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._vocabulary = tokenizer._vocabulary
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._context: list[int] = []
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        # A model's vocabulary may be padded beyond the tokenizer's: those ids have no text.
        if token_id in self._vocabulary.special or not 0 <= token_id < self._vocabulary.size:
            return ""
        if (utf8 := self._vocabulary.utf8(token_id)) is not None:
            return self._utf8.decode(utf8)
        self._held.append(token_id)
        return "" if self._vocabulary.unfinished(token_id) else self._text(final=False)

    def end(self) -> str:
        """The text held back until now."""
        return self._utf8.decode(b"", final=True) + self._text(final=True)

    def _text(self, final: bool) -> str:
        before = self._vocabulary.decode(self._context)
        text = self._vocabulary.decode(self._context + self._held)[len(before) :]
        if not final and text.endswith(_REPLACEMENT) and len(self._held) < self._LONGEST_HOLD:
            return ""
        if text:
            self._context, self._held = self._held, []
        return text


class _Pipeline:
    """A vocabulary in the `tokenizers` library: what a tokenizer.json holds."""

    def __init__(self, backend: tokenizers.Tokenizer, config: Config) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.names = {key: config[key] for key in NAMES if key in config}
        backend.add_special_tokens([token for token in self.names.values() if backend.token_to_id(token) is not None])
        added = backend.get_added_tokens_decoder()
        self.size = 1 + max(backend.get_vocab().values(), default=-1)
        self.special = frozenset(token_id for token_id, token in added.items() if token.special)
        decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder else {"type": ""}
        kinds = {step["type"] for step in decoder.get("decoders", [decoder])}
        control = {i: token for i, token in added.items() if token.special or CONTROL_LOOK.fullmatch(token.content)}
        self.control = ControlTokens({token.content: i for i, token in control.items()})
        self._byte_level = "ByteLevel" in kinds and kinds <= {"ByteLevel", "Fuse"}
        self._backend = backend

    def encode(self, text: str, special: bool) -> list[int]:
        return self._backend.encode(text, add_special_tokens=special).ids

    def encode_marked(self, text: str) -> list[int]:
        return self._literal.encode(text)

    @cached_property
    def _literal(self) -> LiteralPipeline:
        return LiteralPipeline(self._backend, self.control)

    def decode(self, ids: list[int]) -> str:
        return self._backend.decode(ids, skip_special_tokens=False)

    def find(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    def token(self, token_id: int) -> str:
        return self._backend.id_to_token(token_id) or ""

    def utf8(self, token_id: int) -> bytes | None:
        """The token's bytes, where text is all tokens' bytes as UTF-8 and nothing else; None elsewhere."""
        if not self._byte_level:
            return None
        token = self.token(token_id)
        try:
            return bytes(map(_SPELLED_BYTE.__getitem__, token))
        except KeyError:  # an added token, spelled as it reads
            return token.encode()

    def unfinished(self, token_id: int) -> bool:
        """Whether later tokens may change this one's text: a run of <0xNN> is UTF-8 as a whole or not at all."""
        return self.token(token_id).startswith("<0x")

    def save(self, folder: Path) -> Config:
        """Write tokenizer.json; returns what tokenizer_config.json must say about it."""
        self._backend.save(str(folder / "tokenizer.json"))
        return {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}


class _SentencePiece:
    """A SentencePiece model, and the special tokens that the library itself never reads from text."""

    def __init__(self, model: bytes, config: Config) -> None:
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise UserError("The SentencePiece model is damaged, or none at all.") from error
        self._pieces = self._processor.vocab_size() if model else 0
        if not self._pieces:
            raise UserError("The SentencePiece model is empty.")
        control = [i for i, yes in enumerate(self._processor.is_control(list(range(self._pieces)))) if yes]
        own = {"bos_token": self._processor.bos_id(), "eos_token": self._processor.eos_id()}
        own["unk_token"] = self._processor.unk_id()
        self.names = {key: self._processor.id_to_piece(token_id) for key, token_id in own.items() if token_id >= 0}
        self.names |= {key: config[key] for key in NAMES if key in config}
        named = [self._processor.piece_to_id(token) for token in self.names.values()]
        self._texts = {token_id: self._processor.id_to_piece(token_id) for token_id in [*control, *named]}
        # Tokens that were added after SentencePiece's training stand in tokenizer_config.json only.
        added = config.get("added_tokens_decoder", {})
        self._added = {i: token for i, token in added.items() if i >= self._pieces and token["content"]}
        self.special = frozenset([*self._texts, *(i for i, token in self._added.items() if token["special"])])
        self._texts |= {i: token["content"] for i, token in self._added.items()}
        self._ids = {text: token_id for token_id, text in self._texts.items()}
        self._special_text = re.compile(f"({'|'.join(map(re.escape, sorted(self._ids, key=len, reverse=True)))})")
        looks = {text: i for text, i in self._ids.items() if i in self.special or CONTROL_LOOK.fullmatch(text)}
        self.control = ControlTokens(looks)
        self.size = 1 + max(self._pieces - 1, *self._texts)
        # SentencePiece puts a space before any text. HF's `legacy` says that this includes text after a special token,
        # as Meta's Llama and llama.cpp have it.
        self._legacy = bool(config.get("legacy", True))
        bos, eos = (self._ids.get(self.names.get(key, "")) for key in ("bos_token", "eos_token"))
        self._before = [bos] if config.get("add_bos_token", True) and bos is not None else []
        self._after = [eos] if config.get("add_eos_token", False) and eos is not None else []

    @cached_property
    def _without_space(self) -> sentencepiece.SentencePieceProcessor:
        processor = sentencepiece.SentencePieceProcessor(model_proto=self._processor.serialized_model_proto())
        processor.override_normalizer_spec(add_dummy_prefix=False)
        return processor

    def encode(self, text: str, special: bool) -> list[int]:
        ids: list[int] = []
        for i, part in enumerate(self._special_text.split(text)):
            if i % 2:
                ids.append(self._ids[part])
            elif part:
                processor = self._processor if self._legacy or i == 0 else self._without_space
                ids += processor.encode(part.replace(MARK, ""))
        return [*self._before, *ids, *self._after] if special else ids

    def encode_marked(self, text: str) -> list[int]:
        return self.encode(text, special=False)  # a marked token is not found, and the library itself reads none

    def decode(self, ids: list[int]) -> str:
        text = ""
        for special, run in groupby(ids, self._texts.__contains__):
            if special:
                text += "".join(self._texts[token_id] for token_id in run)
                continue
            pieces = self._processor.id_to_piece([token_id for token_id in run if token_id < self._pieces])
            # The library drops the space at the beginning of all text; within it, a letter before the run keeps it.
            text += self._processor.decode_pieces(["x", *pieces])[1:] if text else self._processor.decode_pieces(pieces)
        return text

    def find(self, token: str) -> int | None:
        token_id = self._ids.get(token, self._processor.piece_to_id(token))
        return None if token_id == self._processor.unk_id() and token not in self._ids else token_id

    def token(self, token_id: int) -> str:
        return self._texts.get(token_id) or (self._processor.id_to_piece(token_id) if token_id < self._pieces else "")

    def utf8(self, token_id: int) -> bytes | None:
        return None

    def unfinished(self, token_id: int) -> bool:
        """Whether later tokens may change this one's text: a byte from 0x80 is but part of a character."""
        if token_id >= self._pieces or not self._processor.is_byte(token_id):
            return False
        return int(self._processor.id_to_piece(token_id)[1:-1], 16) >= 0x80

    def save(self, folder: Path) -> Config:
        """Write tokenizer.model; returns what tokenizer_config.json must say about it."""
        (folder / "tokenizer.model").write_bytes(self._processor.serialized_model_proto())
        flags = {"add_bos_token": bool(self._before), "add_eos_token": bool(self._after), "legacy": self._legacy}
        return {"tokenizer_class": "LlamaTokenizer", **flags, "added_tokens_decoder": self._added}
