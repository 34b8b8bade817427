"""A tokenizer as the `tokenizer.*` metadata of a GGUF file, the inverse of `vocabularies.from_gguf`."""

import json
from typing import Any

import tokenizers
from tokenizers import Regex, pre_tokenizers

from genwright.errors import UserError
from genwright.text.tokenizer.libraries import SentencePiece
from genwright.text.tokenizer.tokenizer import Tokenizer
from genwright.text.tokenizer.vocabularies import (
    BYTE,
    CONTROL,
    NORMAL,
    PRE_TOKENIZERS,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    WHOLE_WORDS,
)

KINDS = {"normal": NORMAL, "unknown": UNKNOWN, "control": CONTROL, "user-defined": USER_DEFINED}
KINDS |= {"unused": UNUSED, "byte": BYTE}
# Every known pre-tokenizer splits this text differently.
PROBE = (
    "It's I'LL they'RE 3 12 3333 4444444 x9 \tTab  two   three\n\n new\r\n line \n  indented() {a_b: C-d} "
    "naïve Ünïcode CamelCase HTTPServer русский 你好世界 こんにちは 한국어 ... !!! ?:) /path/to "
    "'quoted' \"q\" #1 ١٢٣ ½ <|x|>  "
)


def gguf_metadata(tokenizer: Tokenizer, vocab_size: int) -> dict[str, Any]:
    """`vocab_size` is the model's; tokens that the tokenizer lacks are unused ones."""
    pieces, serialized = tokenizer.sentencepiece, tokenizer.serialized()
    found = _sentencepiece(tokenizer, pieces) if pieces is not None else _pipeline(tokenizer, serialized or "")
    missing = range(len(found["tokens"]), vocab_size)
    fillers = {"tokens": [f"[PAD{i}]" for i in missing], "token_type": [UNUSED] * len(missing)}
    fillers["scores"] = [-1e4] * len(missing)
    found |= {key: (found[key] + filler)[:vocab_size] for key, filler in fillers.items() if key in found}
    begins, alone = tokenizer.encode("a"), tokenizer.encode("a", special=False)
    return {
        **{f"tokenizer.ggml.{key}": value for key, value in found.items()},
        **({} if tokenizer.bos_id is None else {"tokenizer.ggml.bos_token_id": tokenizer.bos_id}),
        "tokenizer.ggml.add_bos_token": len(begins) > len(alone) and begins[0] == tokenizer.bos_id,
        "tokenizer.ggml.add_eos_token": len(begins) > len(alone) and begins[-1] in tokenizer.eos_ids,
        **({"tokenizer.chat_template": tokenizer.chat_template} if tokenizer.chat_template else {}),
    }


def _pipeline(tokenizer: Tokenizer, serialized: str) -> dict[str, Any]:
    """A tokenizer.json: byte-level BPE, or SentencePiece's BPE, which falls back to bytes."""
    parsed = json.loads(serialized)
    model = parsed["model"]
    if model["type"] != "BPE":
        raise UserError(f"A GGUF file can hold BPE tokenizers, not {model['type']}.")
    tokens = [tokenizer.token(i) or f"[EMPTY_{i}]" for i in range(tokenizer.vocab_size)]
    added = {token["id"]: CONTROL if token["special"] else USER_DEFINED for token in parsed["added_tokens"]}
    types = [added.get(i, NORMAL) for i in range(len(tokens))]
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    if not model.get("byte_fallback"):
        pre = _pre_tokenizer(serialized, bool(model.get("ignore_merges")))
        texts = [" ".join(merge) for merge in merges]
        return {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": types, "merges": texts}
    ranks: dict[str, float] = {}
    for rank, merge in enumerate(merges):
        ranks.setdefault("".join(merge), -float(rank + 1))  # a better score is merged first
    for i, token in enumerate(tokens):
        if types[i] == NORMAL and len(token) == 6 and token.startswith("<0x"):
            types[i] = BYTE
    if (unknown := model.get("unk_token")) in tokens:
        types[tokens.index(unknown)] = UNKNOWN
    settings = {"pre": "default", "add_space_prefix": _has_space_prefix(tokenizer)}
    scores = [ranks.get(token, 0.0) for token in tokens]
    return {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores, **settings}


def _sentencepiece(tokenizer: Tokenizer, vocabulary: SentencePiece) -> dict[str, Any]:
    ids = range(tokenizer.vocab_size)
    return {
        "model": "llama",
        "pre": "default",
        "tokens": [tokenizer.token(i) or f"[EMPTY_{i}]" for i in ids],
        "token_type": [KINDS[vocabulary.kind(i)] for i in ids],
        "scores": [vocabulary.score(i) for i in ids],
        "add_space_prefix": _has_space_prefix(tokenizer),
    }


def _has_space_prefix(tokenizer: Tokenizer) -> bool:
    return tokenizer.token(tokenizer.encode("a", special=False)[0]).startswith("\u2581")


def _pre_tokenizer(serialized: str, whole_words: bool) -> str:
    """llama.cpp's name of the pre-tokenizer, found by what it makes of a text."""
    backend = tokenizers.Tokenizer.from_str(serialized)
    own = [] if backend.pre_tokenizer is None else backend.pre_tokenizer.pre_tokenize_str(PROBE)
    for name, splits in PRE_TOKENIZERS.items():
        known = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in splits]
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        same = pre_tokenizers.Sequence([*known, bytes_only]).pre_tokenize_str(PROBE) == own
        if same and (name in WHOLE_WORDS) == whole_words:
            return name
    raise UserError("The tokenizer splits text in a way that no pre-tokenizer of GGUF files does.")
