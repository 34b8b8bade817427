"""Small tokenizers of every kind, and texts to compare them on."""

import json
import random
import re
import unicodedata
from pathlib import Path
from typing import Any

import mistral_common
import numpy as np
import pytest
import sentencepiece
import tokenizers
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from genwright.text.tokenizer.tokenizer import Tokenizer
from genwright.text.tokenizer.vocabularies import BYTE_TO_CHAR

DATA = Path(mistral_common.__file__).parent / "data"
MISTRAL = DATA / "tokenizer.model.v1"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Was ist 2+2? \n"}]


def random_texts(special: tuple[str, ...] = (), count: int = 1000) -> list[str]:
    """Words, numbers, white space and characters that every library's Unicode version knows (those of Unicode 3.2)."""
    rng = random.Random(0)
    known = [chr(c) for c in range(0x110000) if unicodedata.ucd_3_2_0.category(chr(c)) not in ("Cn", "Cs")]
    parts = [
        lambda: "".join(rng.choices(known, k=rng.randint(1, 5))),
        lambda: "".join(rng.choices("etaoinshrdluETAOIN", k=rng.randint(1, 9))),
        lambda: " " + "".join(rng.choices("etaoinshrdlu", k=rng.randint(1, 9))),
        lambda: str(rng.randrange(10 ** rng.randint(1, 9))),
        lambda: rng.choice([" ", "  ", "\n", "\n\n", "\t", "\r\n", "    ", " \n ", "'s", "'LL", "...", " (", "/*"]),
        lambda: rng.choice(
            ["\U0001f600", "\U0001f469\u200d\U0001f4bb", "é", "e\u0301", "日本語", "한국어", "हिन्दी", "мир"]
        ),
        lambda: rng.choice(special or ("",)),
    ]
    return ["".join(rng.choice(parts)() for _ in range(rng.randrange(12))) for _ in range(count)]


def train_byte_level(path: Path) -> None:
    """A tokenizer.json like Llama 3's, with settings that generation must ignore."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(random_texts(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(pad_id=1, pad_token="</s>", length=9)
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|im_end|>"}
    templates = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": CHATML}]
    (path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": templates, "unk_token": None}))


def save_sentencepiece(path: Path, **config: Any) -> None:
    (path / "tokenizer.model").write_bytes(MISTRAL.read_bytes())
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer", **config}))


def open_folder(path: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_folder(path)
    assert tokenizer is not None
    return tokenizer


def assert_equals_transformers(tokenizer: Tokenizer, reference: Any, texts: list[str]) -> None:
    for text in texts:
        ids = tokenizer.encode(text)
        assert ids == reference.encode(text)
        assert tokenizer.encode(text, special=False) == reference.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)
        assert tokenizer.decode(ids, skip_special=False) == reference.decode(ids)


def without_odd_spaces(texts: list[str]) -> list[str]:
    """Texts that transformers reads as SentencePiece does.

    It orders merges by id, not by score, so that runs of spaces merge otherwise, and puts no space before a space.
    """
    usual = [text for text in texts if not re.search("(^|>) |  ", text)]
    assert len(usual) > len(texts) / 2
    return usual


def gguf_of_sentencepiece() -> dict[str, Any]:
    library = sentencepiece.SentencePieceProcessor(str(MISTRAL))
    ids = list(range(library.vocab_size()))
    kinds = np.ones(len(ids), np.int32)
    for kind, test in ((2, library.is_unknown), (3, library.is_control), (5, library.is_unused), (6, library.is_byte)):
        kinds[test(ids)] = kind
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": library.id_to_piece(ids),
        "tokenizer.ggml.scores": np.array(library.get_score(ids), np.float32),
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def byte_level_gguf(**metadata: Any) -> dict[str, Any]:
    """A GGUF vocabulary of single bytes, a merge and special tokens."""
    tokens = [*BYTE_TO_CHAR.values(), "ab", "<|end|>", "<\uff5cUser\uff5c>", "<think>", "xyz"]
    types = [1] * 257 + [3, 3, 4, 1]
    given = {"model": "gpt2", "pre": "llama-bpe", "tokens": tokens, "merges": ["a b"], "token_type": types}
    return {f"tokenizer.ggml.{key}": value for key, value in (given | metadata).items()}


def write_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tokenizer folders, one per kind of decoder."""
    names = ("byte-level", "byte-fallback", "sentencepiece", "metaspace", "wordpiece", "no-decoder", "fused")
    paths = {name: tmp_path_factory.mktemp(name) for name in names}
    train_byte_level(paths["byte-level"])
    save_sentencepiece(paths["sentencepiece"])
    save_sentencepiece(paths["byte-fallback"], add_bos_token=True)
    # transformers turns SentencePiece into a `tokenizers` pipeline whose decoder reads <0xNN> and strips a space.
    transformers.AutoTokenizer.from_pretrained(paths["byte-fallback"]).save_pretrained(paths["byte-fallback"])
    words = [
        "<0x41>",
        "<0xC3>",
        "<0xA9>",
        "\u2581a",
        "\u2581",
        "b",
        "##c",
        "\u2581\u2581",
        "\ufffd",
        "",
        "\u00e9",
        "\u00c3",
    ]
    for name, decoder in {
        "metaspace": decoders.Metaspace(),
        "wordpiece": decoders.WordPiece(),
        "no-decoder": None,
        "fused": decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()]),
    }.items():
        tokenizer = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "b"))
        if decoder:
            tokenizer.decoder = decoder
        tokenizer.save(str(paths[name] / "tokenizer.json"))
    return paths
