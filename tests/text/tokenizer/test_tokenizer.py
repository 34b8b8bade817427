"""The tokenizer against the libraries that define each format, both ways, on a thousand random texts."""

import base64
import json
import random
import re
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import gguf
import mistral_common
import numpy as np
import pytest
import sentencepiece
import tiktoken
import tokenizers
import transformers
from call_count import calls
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from genwright.errors import UserError
from genwright.text.tokenizer.tokenizer import Tokenizer
from genwright.text.tokenizer.vocabularies import BYTE_TO_CHAR, PRE_TOKENIZERS

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


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
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


def test_tokenizer_json_equals_transformers(folders: dict[str, Path]) -> None:
    for name in ("byte-level", "byte-fallback"):
        tokenizer, reference = open_folder(folders[name]), transformers.AutoTokenizer.from_pretrained(folders[name])
        assert tokenizer.vocab_size == len(reference) and tokenizer.bos_id == reference.bos_token_id
        assert tokenizer.eos_ids == (reference.eos_token_id,)
        assert_equals_transformers(tokenizer, reference, random_texts(("<s>", "</s>", "<|im_end|>")))


def test_sentencepiece_equals_the_library(folders: dict[str, Path]) -> None:
    tokenizer, library = open_folder(folders["sentencepiece"]), sentencepiece.SentencePieceProcessor(str(MISTRAL))
    assert (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_ids) == (32000, 1, (2,))
    for text in random_texts():
        ids = library.encode(text)
        assert tokenizer.encode(text) == [1, *ids] and tokenizer.encode(text, special=False) == ids
        assert tokenizer.decode([1, *ids, 2]) == library.decode(ids)


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


def test_gguf_llama_equals_sentencepiece(folders: dict[str, Path], tmp_path: Path) -> None:
    metadata = gguf_of_sentencepiece()
    tokenizer, library = Tokenizer.from_gguf(metadata), sentencepiece.SentencePieceProcessor(str(MISTRAL))
    assert tokenizer is not None and (tokenizer.bos_id, tokenizer.eos_ids) == (1, (2,))
    texts = random_texts()
    tokenizer.save(tmp_path)
    saved = open_folder(tmp_path)
    for text in texts:
        ids = library.encode(text)
        assert tokenizer.encode(text) == saved.encode(text) == [1, *ids]
        assert tokenizer.decode(ids) == saved.decode(ids) == library.decode(ids)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert_equals_transformers(tokenizer, reference, without_odd_spaces(random_texts(("<s>", "</s>"))))

    bare = Tokenizer.from_gguf(
        metadata | {"tokenizer.ggml.add_bos_token": False, "tokenizer.ggml.add_space_prefix": False}
    )
    library.override_normalizer_spec(add_dummy_prefix=False)
    assert bare is not None and all(bare.encode(text) == library.encode(text) for text in texts)


def test_tiktoken_file_equals_tiktoken(tmp_path: Path, full_size: bool) -> None:
    count = 128_000 if full_size else 20_000  # the first ranks of a vocabulary are a vocabulary
    vocabulary = json.loads((DATA / "tekken_240911.json").read_bytes())["vocab"][:count]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in vocabulary}
    lines = b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
    (tmp_path / "tokenizer.model").write_bytes(lines)
    tokenizer = open_folder(tmp_path)
    special = {"<|begin_of_text|>": count, "<|start_header_id|>": count + 6, "<|eot_id|>": count + 9}
    special |= {"<|reserved_special_token_247|>": count + 255}
    library = tiktoken.Encoding(
        "test", pat_str=GGUF_PRE_TOKENIZER_SPLITS["llama-bpe"], mergeable_ranks=ranks, special_tokens=special
    )
    assert tokenizer.vocab_size == count + 256 and tokenizer.bos_id == count
    assert tokenizer.eos_ids == (count + 1, count + 9, count + 8)
    texts = random_texts(tuple(special))
    texts += ["".join(random.Random(i).choices("aeinrst", k=40)) for i in range(200)]  # many merges in one word
    for text in texts:
        ids = library.encode(text, allowed_special="all")
        assert tokenizer.encode(text) == [count, *ids] and tokenizer.encode(text, special=False) == ids
        assert tokenizer.decode(ids, skip_special=False) == library.decode(ids)

    tokenizer.save(tmp_path / "saved")
    saved = open_folder(tmp_path / "saved")
    assert (saved.bos_id, saved.eos_ids, saved.vocab_size) == (
        tokenizer.bos_id,
        tokenizer.eos_ids,
        tokenizer.vocab_size,
    )
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert_equals_transformers(saved, reference, texts[::10])


@pytest.fixture(scope="module")
def smollm2_metadata(smollm2: Path) -> dict[str, Any]:
    fields = gguf.GGUFReader(smollm2).fields
    return {name: field.contents() for name, field in fields.items() if name.startswith("tokenizer.")}


def test_smollm2_equals_transformers(smollm2: Path, smollm2_metadata: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(smollm2_metadata)
    assert tokenizer is not None and (tokenizer.vocab_size, tokenizer.bos_id, tokenizer.eos_ids) == (49152, 1, (2,))
    reference = transformers.AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)
    texts = random_texts(("<|im_start|>", "<|im_end|>", "<|endoftext|>"))
    assert_equals_transformers(tokenizer, reference, [t for t in texts if not any(map(str.isnumeric, t))])
    # transformers overlooks that in "smollm" every digit stands alone, as in the model's own tokenizer.json.
    digits = pre_tokenizers.Digits(individual_digits=True)
    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(False)])
    assert_equals_transformers(tokenizer, reference, texts)
    assert tokenizer.chat(CHAT) == reference.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]

    tokenizer.save(tmp_path)
    saved, saved_reference = open_folder(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (saved.eos_ids, saved.chat_template) == (tokenizer.eos_ids, tokenizer.chat_template)
    assert saved_reference.chat_template == tokenizer.chat_template
    for text in texts:
        assert tokenizer.encode(text) == saved.encode(text) == saved_reference.encode(text)


def test_smollm2_loads_in_a_few_calls_per_token(smollm2_metadata: dict[str, Any]) -> None:
    tokens = len(smollm2_metadata["tokenizer.ggml.tokens"])
    assert calls(Tokenizer.from_gguf, smollm2_metadata) < 4 * tokens


def test_vocab_and_merges_equal_transformers(folders: dict[str, Path], tmp_path: Path) -> None:
    model = json.loads((folders["byte-level"] / "tokenizer.json").read_bytes())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]))
    config = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "bos_token": "</s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"unk_token": "</s>"}))  # as OPT has it
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert_equals_transformers(open_folder(tmp_path), reference, random_texts(("</s>",), 300))


def byte_level_gguf(**metadata: Any) -> dict[str, Any]:
    """A GGUF vocabulary of single bytes, a merge and special tokens."""
    tokens = [*BYTE_TO_CHAR.values(), "ab", "<|end|>", "<\uff5cUser\uff5c>", "<think>", "xyz"]
    types = [1] * 257 + [3, 3, 4, 1]
    given = {"model": "gpt2", "pre": "llama-bpe", "tokens": tokens, "merges": ["a b"], "token_type": types}
    return {f"tokenizer.ggml.{key}": value for key, value in (given | metadata).items()}


def test_gguf_special_tokens() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_gguf(bos_token_id=257, eos_token_id=258, eot_token_id=257))
    assert tokenizer is not None and (tokenizer.bos_id, tokenizer.eos_ids) == (257, (258, 257))
    ids = tokenizer.encode("ab<think>\u00e9<\uff5cUser\uff5c><|end|>")
    assert ids == [257, 256, 259, 0xC3, 0xA9, 258, 257]
    assert tokenizer.decode(ids) == "ab<think>\u00e9"  # user-defined tokens are text, control tokens are not
    assert tokenizer.decode(ids, skip_special=False) == "<|end|>ab<think>\u00e9<\uff5cUser\uff5c><|end|>"
    assert tokenizer.encode("xyz xyz", special=False) == [260, *b" xyz"]  # Llama 3 looks a whole word up first ...
    other = Tokenizer.from_gguf(byte_level_gguf(pre="gpt-2", bos_token_id=257))
    assert other is not None and other.encode("xyz") == [*b"xyz"]  # ... GPT-2 only merges, and adds no BOS
    assert Tokenizer.from_gguf({"general.architecture": "llama"}) is None
    outside = Tokenizer.from_gguf(byte_level_gguf(bos_token_id=0xFFFFFFFF, eos_token_id=-1))
    assert outside is not None and (outside.bos_id, outside.eos_ids) == (None, ()) and outside.encode("ab") == [256]


def test_pre_tokenizers() -> None:
    """Each splits as a reference implementation does or, where none is at hand, as published examples."""
    shared = PRE_TOKENIZERS.keys() & GGUF_PRE_TOKENIZER_SPLITS.keys()
    assert {"llama-bpe", "qwen2", "tekken"} <= shared
    assert all(PRE_TOKENIZERS[name] == [GGUF_PRE_TOKENIZER_SPLITS[name]] for name in shared)

    def split(name: str, text: str) -> list[str]:
        for regex in PRE_TOKENIZERS[name]:
            cut = pre_tokenizers.Split(tokenizers.Regex(regex), "isolated")
            steps = pre_tokenizers.Sequence([*([] if name not in done else [done[name]]), cut])
            done[name] = steps
        return [piece for piece, _ in done.pop(name).pre_tokenize_str(text)]

    done: dict[str, Any] = {}
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    smollm = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    for name, reference in (("gpt-2", gpt2), ("smollm", smollm)):
        for text in random_texts(count=300):
            offsets = [span for _, span in reference.pre_tokenize_str(text)]
            assert split(name, text) == [text[a:b] for a, b in offsets]
    text = "Don't 12345 x!=y 東京タワー\n\n  ok"
    assert split("deepseek-v3", text) == [
        *("Don", "'t", " ", "123", "45", " x", "!=", "y", " ", "東京タワー", "\n\n", " ", " ok")
    ]
    assert split("deepseek-llm", text) == [
        *("Don", "'", "t", " ", "12345", " x", "!=", "y", " ", "東京タワー", "\n", "\n", " ", " ok")
    ]


@pytest.mark.parametrize(
    "name", ["byte-level", "byte-fallback", "sentencepiece", "metaspace", "wordpiece", "no-decoder", "fused"]
)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_stream_joined_is_decode(
    folders: dict[str, Path], streamed: dict[str, Tokenizer], name: str, data: Any
) -> None:
    if name not in streamed:
        streamed[name] = open_folder(folders[name])
    tokenizer = streamed[name]
    anything = st.integers(0, tokenizer.vocab_size - 1)
    few = st.integers(0, min(tokenizer.vocab_size - 1, 300))  # special and byte tokens
    ids = data.draw(st.lists(st.one_of(anything, few), max_size=30))
    stream = tokenizer.stream()
    assert "".join([*map(stream.push, ids), stream.end()]) == tokenizer.decode(ids)


@pytest.fixture(scope="module")
def streamed() -> dict[str, Tokenizer]:
    return {}


@pytest.mark.parametrize("name", ["byte-level", "byte-fallback", "sentencepiece"])
def test_stream_never_shows_half_a_character(folders: dict[str, Path], name: str) -> None:
    tokenizer = open_folder(folders[name])
    for text in random_texts(count=200):
        stream, ids = tokenizer.stream(), tokenizer.encode(text)
        pieces = [*map(stream.push, ids), stream.end()]
        assert "".join(pieces) == tokenizer.decode(ids)
        assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("name", ["byte-level", "byte-fallback", "sentencepiece"])
def test_spellings_joined_are_the_text(folders: dict[str, Path], name: str) -> None:
    tokenizer, text = open_folder(folders[name]), "Once upon a time, a fox"
    spelled = [tokenizer.token_text(token) for token in tokenizer.encode(text, special=False)]
    assert "".join(map(str, spelled)).lstrip() == text and " a" in "".join(map(str, spelled))
    assert tokenizer.token_text(tokenizer.vocab_size) == f"<{tokenizer.vocab_size}>"
    if name == "byte-level":
        halves = [tokenizer.token_text(token) for token in tokenizer.encode("\U0001f98a", special=False)]
        assert b"".join(half for half in halves if isinstance(half, bytes)).decode() == "\U0001f98a"


def test_stream_is_prompt_and_looks_back_only_a_little(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = open_folder(folders["sentencepiece"])
    newline, half, word = (
        tokenizer.encode("\n", special=False)[-1],
        3 + 0xE2,
        tokenizer.encode("word", special=False)[0],
    )
    assert tokenizer.stream().push(newline) == "\n"  # a byte token, but a whole character
    decode, decoded = tokenizer._vocabulary.decode, []
    monkeypatch.setattr(tokenizer._vocabulary, "decode", lambda ids: decoded.append(len(ids)) or decode(ids))
    stream = tokenizer.stream()
    for token in [word, newline] * 500 + [half, word] * 500:
        stream.push(token)
    assert sum(decoded) < 10 * 2000

    bytes_of_euro = [3 + 0xE2, 3 + 0x82, 3 + 0xAC]
    for broken in range(12):  # a whole character after any number of bytes that are none
        ids, stream = [3 + 0x80] * broken + bytes_of_euro, tokenizer.stream()
        assert "".join([*map(stream.push, ids), stream.end()]) == "\ufffd" * broken + "\u20ac"

    byte_level = open_folder(folders["byte-level"])
    half = byte_level.encode("\u20ac", special=False)[0]
    stream = byte_level.stream()
    shown = [stream.push(half) for _ in range(100)]
    assert shown == ["", *["\ufffd"] * 99] and stream.end() == "\ufffd"


def test_chat(folders: dict[str, Path], tmp_path: Path) -> None:
    tokenizer = open_folder(folders["byte-level"])
    reference = transformers.AutoTokenizer.from_pretrained(folders["byte-level"])
    assert tokenizer.chat(CHAT) == reference.apply_chat_template(CHAT, add_generation_prompt=True)["input_ids"]
    assert tokenizer.chat(CHAT)[0] == 2  # no BOS but the template's own, and <|im_start|> is one token

    # Llama 2's, encoded as Meta's own code does, which encodes each turn by itself after BOS.
    library = sentencepiece.SentencePieceProcessor(str(MISTRAL))
    llama = open_folder(folders["sentencepiece"])
    with pytest.raises(UserError, match="The checkpoint has no chat template; pass --chat-template chatml, "):
        llama.chat(CHAT)
    llama.use_template("llama-2")
    first = library.encode("[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Yes ")
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    turns += [{"role": "assistant", "content": "Yes"}, {"role": "user", "content": "Why?"}]
    assert llama.chat(turns) == [1, *first, 2, 1, *library.encode("[INST] Why? [/INST]")]

    # tokenizer_config.json may add tokens, and say that text after a special token gets no space of its own.
    added = {"32000": {"content": "<|im_end|>", "special": True}, "32001": {"content": "<tool>", "special": False}}
    save_sentencepiece(tmp_path, add_bos_token=True, legacy=False, eos_token="<|im_end|>", added_tokens_decoder=added)
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}go")
    modern, reference = open_folder(tmp_path), transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (modern.vocab_size, modern.eos_ids) == (32002, (32000,))
    assert modern.chat(CHAT) == reference.apply_chat_template(CHAT)["input_ids"]
    texts = random_texts(("<s>", "<|im_end|>", "<tool>"), 300)
    assert_equals_transformers(modern, reference, without_odd_spaces(texts))
    modern.save(tmp_path / "saved")
    saved = open_folder(tmp_path / "saved")
    assert all(saved.encode(text) == modern.encode(text) for text in texts) and saved.eos_ids == (32000,)


def test_templates_beside_the_tokenizer(tmp_path: Path) -> None:
    """The tokenizer's own file comes first, then tokenizer_config.json, then a processor's file."""
    message = [{"role": "user", "content": ""}]
    save_sentencepiece(tmp_path)
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "processor"}))
    assert open_folder(tmp_path).render(message) == "processor"
    save_sentencepiece(tmp_path, chat_template="config")
    assert open_folder(tmp_path).render(message) == "config"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert open_folder(tmp_path).render(message) == "file"


def test_folder_without_a_tokenizer(tmp_path: Path) -> None:
    assert Tokenizer.from_folder(tmp_path) is None and Tokenizer.from_folder(tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"tokenizer.json": b'{"version": "1.0", "mod'}, "tokenizer.json cannot be read"),
        ({"tokenizer.json": b"\xff\xfe\x00"}, "tokenizer.json cannot be read"),
        ({"tokenizer.json": b"[]"}, "tokenizer.json cannot be read"),
        ({"tokenizer.json": b'{"model": {"continuing_subword_prefix": "x"}}'}, "continuing_subword_prefix"),
        ({"tokenizer.json": b"{}", "tokenizer_config.json": b'{"chat_template": 5}'}, "chat_template"),
        ({"tokenizer.json": b"{}", "chat_template.json": b'["x"]'}, "unknown form"),
        ({"tokenizer.model": b""}, "model is empty"),
        ({"tokenizer.model": b"\x0a\xff\xff\xff\xff"}, "damaged or in another format"),
        ({"tokenizer.model": b"once upon a time"}, "damaged or in another format"),
        ({"tokenizer.model": b"IQ== 0\nIg== one\n"}, "Line 2"),
        ({"tokenizer.model": b"IQ== 0\n!!!! 1\n"}, "Line 2"),
        ({"tokenizer.model": b"IQ== 0\nIg== 7\n"}, "0, 1, 2"),
        ({"tokenizer.model": b"IQ== 0\n", "tokenizer_config.json": b"{"}, "tokenizer_config.json is not JSON"),
        ({"tokenizer.model": b"IQ== 0\n", "tokenizer_config.json": b"[1]"}, "unknown form"),
        (
            {"tokenizer.model": b"IQ== 0\n", "tokenizer_config.json": b'{"added_tokens_decoder": {"x": 1}}'},
            "unknown form",
        ),
        ({"vocab.json": b'{"a": 0}', "merges.txt": b"a b\n"}, "merges do not fit"),
        ({"vocab.json": b'["a"]', "merges.txt": b""}, "vocab.json"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path: Path, files: dict[str, bytes], sentence: str) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=sentence) as caught:
        Tokenizer.from_folder(tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": "bert"}, "must be 'gpt2' or 'llama', not 'bert'"),
        ({"pre": "klingon"}, "must be one of .*llama-bpe.*, not 'klingon'"),
        ({"tokens": []}, "no tokens"),
        ({"tokens": [1, 2]}, "tokens must be a list of str"),
        ({"tokens": ["a", "b", "a"], "token_type": [1, 1, 1]}, "'a' 2 times"),
        ({"token_type": [1, 1]}, "token_type must have 261 entries, one per token, not 2"),
        ({"merges": ["a zzz"]}, "merges do not fit"),
        ({"merges": ["ab"]}, "must be pairs of tokens, not 'ab'"),
        ({"merges": 5}, "merges must be a list"),
        ({"model": "llama"}, "needs tokenizer.ggml.scores"),
        ({"model": "llama", "scores": [0.0] * 261}, "SentencePiece model is damaged"),  # no unknown token
        ({"model": "llama", "scores": [1e300] * 261, "token_type": [2] * 260 + [-7]}, "SentencePiece model is damaged"),
        ({"model": "llama", "scores": [0.5]}, "scores must have 261 entries"),
    ],
)
def test_bad_gguf_metadata_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Tokenizer.from_gguf(byte_level_gguf(**change))


def test_bad_ids_and_texts_are_one_sentence(folders: dict[str, Path]) -> None:
    for name in ("byte-level", "sentencepiece"):
        tokenizer = open_folder(folders[name])
        for bad in (-1, tokenizer.vocab_size):
            with pytest.raises(UserError, match=rf"between 0 and {tokenizer.vocab_size - 1:,}, not {bad}\."):
                tokenizer.decode([5, bad])
            assert tokenizer.stream().push(bad) == "", "a padded vocabulary's ids have no text"
        with pytest.raises(UserError, match="position 2"):
            tokenizer.encode("ab\ud800")


def test_importing_is_cheap() -> None:
    code = (
        "import sys, genwright.text.tokenizer.tokenizer\nsys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
