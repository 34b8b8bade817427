"""Tokenizers as GGUF metadata, read back: they encode every text as before."""

from pathlib import Path

import pytest
import tokenizers
from text.tokenizer.tiny_tokenizers import open_folder, random_texts
from tokenizers import decoders, models, pre_tokenizers

from genwright.errors import UserError
from genwright.text.tokenizer.gguf_metadata import PROBE, gguf_metadata
from genwright.text.tokenizer.tokenizer import Tokenizer
from genwright.text.tokenizer.vocabularies import PRE_TOKENIZERS

CHAT = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("kind", ["byte-level", "byte-fallback", "sentencepiece"])
def test_read_back_it_encodes_the_same(folders: dict[str, Path], kind: str) -> None:
    tokenizer = open_folder(folders[kind])
    size = tokenizer.vocab_size + 5  # models pad their vocabulary
    metadata = gguf_metadata(tokenizer, size)
    assert len(metadata["tokenizer.ggml.tokens"]) == len(metadata["tokenizer.ggml.token_type"]) == size
    assert metadata["tokenizer.ggml.model"] == ("gpt2" if kind == "byte-level" else "llama")
    ends = {f"tokenizer.ggml.{key}_token_id": i for key, i in zip(("eos", "eot"), tokenizer.eos_ids, strict=False)}
    back = Tokenizer.from_gguf(metadata | ends)
    assert back is not None and (back.bos_id, back.eos_ids) == (tokenizer.bos_id, tokenizer.eos_ids)
    assert back.special_ids >= tokenizer.special_ids
    texts = ["Hello there", "a  b", "123 4567\n\nx", "naïve café", "日本語 한국어", "def f(x):\n    return x + 1"]
    for text in (*texts, *(random_texts(count=300) if kind == "sentencepiece" else ())):
        assert back.encode(text) == tokenizer.encode(text), text
        assert back.decode(back.encode(text)) == tokenizer.decode(tokenizer.encode(text))
    assert (back.chat_template, back.chat_template and back.chat(CHAT)) == (
        *(tokenizer.chat_template, tokenizer.chat_template and tokenizer.chat(CHAT)),
    )


def test_every_pre_tokenizer_is_found_by_its_splits() -> None:
    def pieces(name: str) -> tuple[str, ...]:
        steps = [pre_tokenizers.Split(tokenizers.Regex(split), "isolated") for split in PRE_TOKENIZERS[name]]
        return tuple(piece for piece, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(PROBE))

    by_splits: dict[tuple[str, ...], set[str]] = {}
    for name, splits in PRE_TOKENIZERS.items():
        by_splits.setdefault(pieces(name), set()).add(str(splits))
    assert all(len(same) == 1 for same in by_splits.values())


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (models.WordLevel({"a": 0}, "a"), r"A GGUF file can hold BPE tokenizers, not WordLevel\.$"),
        (models.BPE({"a": 0}, []), r"splits text in a way that no pre-tokenizer of GGUF files does\.$"),
    ],
)
def test_other_tokenizers_are_one_sentence(model: models.Model, sentence: str) -> None:
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.ByteLevel()
    with pytest.raises(UserError, match=sentence):
        gguf_metadata(Tokenizer(backend, {}), 1)
