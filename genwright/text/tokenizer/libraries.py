"""The two libraries that tokenize text, `tokenizers` and SentencePiece, behind the same methods."""

import json
import re
from collections.abc import Callable
from functools import cached_property
from itertools import groupby
from pathlib import Path

import sentencepiece
import tokenizers

from genwright.errors import UserError
from genwright.text.tokenizer.control_tokens import MARK, ControlTokens, MarkedTextEncoder
from genwright.text.tokenizer.vocabularies import BYTE_TO_CHAR, SPECIAL_TOKEN_KEYS, Config

_CHAR_TO_BYTE = {char: byte for byte, char in BYTE_TO_CHAR.items()}


class Pipeline:
    """A vocabulary of the `tokenizers` library, as in a tokenizer.json."""

    def __init__(self, backend: tokenizers.Tokenizer, config: Config) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.special_tokens = {key: config[key] for key in SPECIAL_TOKEN_KEYS if key in config}
        backend.add_special_tokens([t for t in self.special_tokens.values() if backend.token_to_id(t) is not None])
        added = backend.get_added_tokens_decoder()
        self.special = frozenset(token_id for token_id, token in added.items() if token.special)
        self.control = ControlTokens({token.content: i for i, token in added.items()}, self.special)
        decoder = json.loads(backend.decoder.__getstate__()) if backend.decoder else {"type": ""}
        kinds = {step["type"] for step in decoder.get("decoders", [decoder])}
        self._byte_level = "ByteLevel" in kinds and kinds <= {"ByteLevel", "Fuse"}
        self._backend = backend

    @cached_property
    def size(self) -> int:
        """One more than the largest id; computed when it is asked for, because the library copies its vocabulary."""
        return 1 + max(self._backend.get_vocab().values(), default=-1)

    def encode(self, text: str, special: bool) -> list[int]:
        return self._backend.encode(text, add_special_tokens=special).ids

    @cached_property
    def encode_marked(self) -> Callable[[str], list[int]]:
        return MarkedTextEncoder(self._backend, self.control).encode

    def decode(self, ids: list[int]) -> str:
        return self._backend.decode(ids, skip_special_tokens=False)

    def find(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    def token(self, token_id: int) -> str:
        return self._backend.id_to_token(token_id) or ""

    def serialized(self) -> str | None:
        """The text of a tokenizer.json; None if the library is another one."""
        return self._backend.to_str()

    def utf8(self, token_id: int) -> bytes | None:
        """The token's bytes in a byte-level vocabulary, whose text is the tokens' bytes as UTF-8; None in others."""
        if not self._byte_level:
            return None
        token = self.token(token_id)
        try:
            return bytes(map(_CHAR_TO_BYTE.__getitem__, token))
        except KeyError:  # an added token, which is stored as plain text
            return token.encode()

    def unfinished(self, token_id: int) -> bool:
        """Whether later tokens may change this one's text: <0xNN> tokens in a row are decoded as UTF-8 together."""
        return self.token(token_id).startswith("<0x")

    def save(self, folder: Path) -> Config:
        """Write tokenizer.json; returns its entries of tokenizer_config.json."""
        self._backend.save(str(folder / "tokenizer.json"))
        return {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}


class SentencePiece:
    """A SentencePiece model, with the special tokens, which the library does not find in text by itself."""

    def __init__(self, model: bytes, config: Config) -> None:
        try:
            processor = self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise UserError("The SentencePiece model is damaged or in another format.") from error
        self._pieces = processor.vocab_size() if model else 0
        if not self._pieces:
            raise UserError("The SentencePiece model is empty.")
        control = [i for i, found in enumerate(processor.is_control(list(range(self._pieces)))) if found]
        ids = {"bos_token": processor.bos_id(), "eos_token": processor.eos_id(), "unk_token": processor.unk_id()}
        self.special_tokens = {key: processor.id_to_piece(token_id) for key, token_id in ids.items() if token_id >= 0}
        self.special_tokens |= {key: config[key] for key in SPECIAL_TOKEN_KEYS if key in config}
        named = [processor.piece_to_id(token) for token in self.special_tokens.values()]
        self._texts = {token_id: processor.id_to_piece(token_id) for token_id in [*control, *named]}
        # Tokens that were added after SentencePiece's training are in tokenizer_config.json only.
        added = config.get("added_tokens_decoder", {})
        self._added = {i: token for i, token in added.items() if i >= self._pieces and token["content"]}
        self.special = frozenset([*self._texts, *(i for i, token in self._added.items() if token["special"])])
        self._texts |= {i: token["content"] for i, token in self._added.items()}
        self._ids = {text: token_id for token_id, text in self._texts.items()}
        self._special_text = re.compile(f"({'|'.join(map(re.escape, sorted(self._ids, key=len, reverse=True)))})")
        self.control = ControlTokens(self._ids, self.special)
        self.size = 1 + max(self._pieces - 1, *self._texts)
        # SentencePiece puts a space before a text. With `legacy`, also before text that follows a special token, as
        # Meta's Llama and llama.cpp do.
        self._legacy = bool(config.get("legacy", True))
        bos, eos = (self._ids.get(self.special_tokens.get(key, "")) for key in ("bos_token", "eos_token"))
        self._prefix = [bos] if config.get("add_bos_token", True) and bos is not None else []
        self._suffix = [eos] if config.get("add_eos_token", False) and eos is not None else []

    @cached_property
    def _without_space(self) -> sentencepiece.SentencePieceProcessor:
        processor = sentencepiece.SentencePieceProcessor(model_proto=self._processor.serialized_model_proto())
        processor.override_normalizer_spec(add_dummy_prefix=False)
        return processor

    def score(self, token_id: int) -> float:
        """The priority of merging to this piece; that of added tokens is low."""
        return self._processor.get_score(token_id) if token_id < self._pieces else -1000.0

    def kind(self, token_id: int) -> str:
        """Of a piece: unknown, byte, unused, control or normal; of an added token: control or user-defined."""
        if token_id < self._pieces:
            for kind in ("unknown", "byte", "unused"):
                if getattr(self._processor, f"is_{kind}")(token_id):
                    return kind
        normal = "normal" if token_id < self._pieces else "user-defined"
        return "control" if token_id in self.special else normal

    def encode(self, text: str, special: bool) -> list[int]:
        ids: list[int] = []
        for i, part in enumerate(self._special_text.split(text)):
            if i % 2:
                ids.append(self._ids[part])
            elif part:
                processor = self._processor if self._legacy or i == 0 else self._without_space
                ids += processor.encode(part.replace(MARK, ""))
        return [*self._prefix, *ids, *self._suffix] if special else ids

    def encode_marked(self, text: str) -> list[int]:
        return self.encode(text, special=False)  # `_special_text` does not match a marked token

    def decode(self, ids: list[int]) -> str:
        text = ""
        for special, run in groupby(ids, self._texts.__contains__):
            if special:
                text += "".join(self._texts[token_id] for token_id in run)
                continue
            pieces = self._processor.id_to_piece([token_id for token_id in run if token_id < self._pieces])
            # The library drops a space at the beginning; inside a text, a letter put before the pieces keeps it.
            text += self._processor.decode_pieces(["x", *pieces])[1:] if text else self._processor.decode_pieces(pieces)
        return text

    def find(self, token: str) -> int | None:
        token_id = self._ids.get(token, self._processor.piece_to_id(token))
        return None if token_id == self._processor.unk_id() and token not in self._ids else token_id

    def token(self, token_id: int) -> str:
        return self._texts.get(token_id) or (self._processor.id_to_piece(token_id) if token_id < self._pieces else "")

    def serialized(self) -> str | None:
        return None

    def utf8(self, token_id: int) -> bytes | None:
        return None

    def unfinished(self, token_id: int) -> bool:
        """Whether later tokens may change this one's text: a byte from 0x80 on is part of a longer character."""
        is_byte = token_id < self._pieces and self._processor.is_byte(token_id)
        return is_byte and int(self._processor.id_to_piece(token_id)[1:-1], 16) >= 0x80

    def save(self, folder: Path) -> Config:
        """Write tokenizer.model; returns its entries of tokenizer_config.json."""
        (folder / "tokenizer.model").write_bytes(self._processor.serialized_model_proto())
        flags = {"add_bos_token": bool(self._prefix), "add_eos_token": bool(self._suffix), "legacy": self._legacy}
        return {"tokenizer_class": "LlamaTokenizer", **flags, "added_tokens_decoder": self._added}
