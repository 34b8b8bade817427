"""Vocabularies of GGUF, tiktoken and merges against the libraries that define them, on a thousand random texts."""

import base64
import json
import random
from pathlib import Path
from typing import Any

import gguf
import pytest
import sentencepiece
import tiktoken
import tokenizers
import transformers
from call_count import calls
from text.tokenizer.tiny_tokenizers import (
    CHAT,
    DATA,
    MISTRAL,
    assert_equals_transformers,
    byte_level_gguf,
    gguf_of_sentencepiece,
    open_folder,
    random_texts,
    without_odd_spaces,
)
from tokenizers import pre_tokenizers
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from genwright.errors import UserError
from genwright.text.tokenizer.tokenizer import Tokenizer
from genwright.text.tokenizer.vocabularies import PRE_TOKENIZERS


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
