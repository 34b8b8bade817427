"""The tokenizer of an OPT model from folders of this machine, called as transformers' tokenizers are."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flexllmgen.opt_config import weight_folder
from genwright.errors import UserError
from genwright.text.tokenizer.tokenizer import Tokenizer

PAD_ID = 1


class LocalTokenizer:
    """Pads on the left, as FlexLLMGen asks transformers to."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self.add_bos_token = True

    def __call__(self, texts: str | Sequence[str], padding: bool | str = False, max_length: int = 0) -> SimpleNamespace:
        """`input_ids` of one text or of each; `padding="max_length"` fills them up to `max_length`."""
        if isinstance(texts, str):
            return SimpleNamespace(input_ids=self._encode(texts))
        rows = [self._encode(text) for text in texts]
        width = max_length if padding == "max_length" else 0
        return SimpleNamespace(input_ids=[[PAD_ID] * (width - len(row)) + row for row in rows])

    def batch_decode(self, rows: Iterable[Iterable[int]], skip_special_tokens: bool = False) -> list[str]:
        return [
            self._tokenizer.decode(
                [int(i) for i in row if not (skip_special_tokens and i == PAD_ID)], skip_special_tokens
            )
            for row in rows
        ]

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, self.add_bos_token)


def find_tokenizer(model: str, path: str) -> Any:
    """The tokenizer of the model's folder of arrays, of its Hugging Face folder, or transformers' one by its name."""
    arrays = weight_folder(model, path)
    # transformers too takes a name for a folder, if there is one.
    name = model if "galactica" in model else "facebook/opt-30b"
    for folder in (arrays, arrays.with_name(arrays.name.removesuffix("-np")), Path(name)):
        if folder.is_dir() and (found := Tokenizer.from_folder(folder)) is not None:
            return LocalTokenizer(found)
    try:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(name, padding_side="left")
    except (ImportError, OSError):
        raise UserError(
            f"There is no tokenizer: put its files (tokenizer.json, or vocab.json and merges.txt) in {arrays}."
        ) from None
