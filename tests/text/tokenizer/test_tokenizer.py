"""The tokenizer against the libraries that define each format, both ways, on a thousand random texts."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from text.tokenizer.tiny_tokenizers import (
    CHAT,
    MISTRAL,
    assert_equals_transformers,
    open_folder,
    random_texts,
    save_sentencepiece,
    without_odd_spaces,
)

from genwright.errors import UserError
from genwright.text.tokenizer.tokenizer import Tokenizer


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
