"""gpt-fast's tokenizers: SentencePiece, or tiktoken's ranks of Llama 3 without the package tiktoken."""

import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import sentencepiece

from genwright.errors import UserError
from genwright.text.tokenizer.tokenizer import Tokenizer

_RANK_LINE = re.compile(rb"[A-Za-z0-9+/=]+ [0-9]+\r?\n")


class TokenizerInterface:
    def __init__(self, model_path: str | Path):
        self.model_path = model_path

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without BOS and EOS."""
        raise NotImplementedError

    def decode(self, tokens: Sequence[int]) -> str:
        raise NotImplementedError

    def bos_id(self) -> int:
        raise NotImplementedError

    def eos_id(self) -> int:
        raise NotImplementedError


class SentencePieceWrapper(TokenizerInterface):
    def __init__(self, model_path: str | Path):
        super().__init__(model_path)
        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_file=str(model_path))
        except (OSError, RuntimeError):
            raise UserError(f"{model_path} is neither a SentencePiece model nor a file of tiktoken's.") from None

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.processor.EncodeAsIds(text)
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """A model may have more ids than its tokenizer; those are unknown tokens."""
        size, unknown = self.processor.GetPieceSize(), self.processor.unk_id()
        text: str = self.processor.DecodeIds([token if token < size else unknown for token in tokens])
        return text

    def bos_id(self) -> int:
        return int(self.processor.bos_id())

    def eos_id(self) -> int:
        return int(self.processor.eos_id())


class TiktokenWrapper(TokenizerInterface):
    def __init__(self, model_path: str | Path):
        super().__init__(model_path)
        with TemporaryDirectory() as folder:  # where no other tokenizer file is preferred to this one
            (Path(folder) / "tokenizer.model").symlink_to(Path(model_path).resolve())
            found = Tokenizer.from_folder(Path(folder))
        assert found is not None and found.bos_id is not None
        self.model, self._bos_id = found, found.bos_id

    def encode(self, text: str) -> list[int]:
        return self.model.encode(text, special=False)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.model.decode(tokens, skip_special=False)

    def bos_id(self) -> int:
        return self._bos_id

    def eos_id(self) -> int:
        return self.model.eos_ids[0]


def get_tokenizer(tokenizer_model_path: str | Path, model_name: object = None) -> TokenizerInterface:
    """The tokenizer of a file; what kind of file it is, its content says and not the model's name."""
    with Path(tokenizer_model_path).open("rb") as file:
        start = file.readline(1000)
    kind = TiktokenWrapper if _RANK_LINE.fullmatch(start) else SentencePieceWrapper
    return kind(tokenizer_model_path)
