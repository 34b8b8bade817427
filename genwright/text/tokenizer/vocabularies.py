"""Builds vocabularies from a checkpoint's folder or from GGUF metadata.

A byte-level BPE vocabulary becomes a `tokenizers.Tokenizer`, a SentencePiece vocabulary becomes a serialized
SentencePiece model. Each comes with the settings of its tokenizer_config.json.
"""

import base64
import json
import re
import struct
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from genwright.errors import UserError

Config = dict[str, Any]  # as in tokenizer_config.json, special tokens as strings
SPECIAL_TOKEN_KEYS = [f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask", "eot", "eom")]
# tokenizers 0.23 aborts the process if such a prefix splits a merge inside a character.
_SUBWORD_PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')
_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+\s")

# GPT-2 writes each byte as one printable character: printable Latin-1 as itself, the other bytes from U+0100 on.
_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHER = {byte: chr(0x100 + i) for i, byte in enumerate(sorted(set(range(0x100)) - _PRINTABLE))}
BYTE_TO_CHAR = {byte: _OTHER.get(byte, chr(byte)) for byte in range(0x100)}

# Pre-tokenizers of byte-level vocabularies, by their names in llama.cpp's `tokenizer.ggml.pre`: regular expressions
# that split the text, applied one after the other.
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
)
_CJK = r"[\x{0800}-\x{9FA5}\x{AC00}-\x{D7FF}]+"
_SPLITS = {
    ("default", "gpt-2", "phi-2", "mpt", "olmo"): [_GPT2],
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"): [r"\p{N}", _GPT2],
    ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "dbrx", "smaug-bpe"): [_LLAMA3],
    ("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"): [_QWEN2],
    ("tekken",): [_TEKKEN],
    ("deepseek-llm",): [
        r"[\r\n]",
        # The list of cased letters in DeepSeek's tokenizer, which lacks a few rare Unicode blocks.
        r"\s?[[\p{Lu}\p{Ll}\p{Lt}]&&[^\x{560}-\x{588}\x{10C7}-\x{10FF}\x{1C80}-\x{1C88}\x{2D00}-\x{2D2D}"
        r"\x{A790}-\x{AB68}\x{10570}-\x{105BC}\x{16E40}-\x{16E7F}\x{1D400}-\x{1DF1E}]]+",
        r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
        r"\s+$",
        _CJK,
        r"\p{N}+",
    ],
    ("deepseek-coder",): [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}"],
    ("deepseek-v3", "hunyuan-dense"): [
        r"\p{N}{1,3}",
        r"[\x{4E00}-\x{9FA5}\x{3040}-\x{30FF}]+",
        r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES,
    ],
}
PRE_TOKENIZERS = {name: splits for names, splits in _SPLITS.items() for name in names}
# These look up a whole word before they merge its bytes, and add BOS unless the file says otherwise.
WHOLE_WORDS = {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken"}

_GGUF_KEYS = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "eot": "eot_token", "eom": "eom_token"}
# Token types; SentencePiece and GGUF use the same numbers.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def from_folder(folder: Path) -> tuple[Tokenizer | bytes, Config] | None:
    """Read the vocabulary of a checkpoint's folder; None if there is none."""
    config = _read_config(folder)
    if (path := folder / "tokenizer.json").is_file():
        data = path.read_bytes()
        if _SUBWORD_PREFIX.search(data):
            raise UserError("tokenizer.json has a continuing_subword_prefix, which is not supported.")
        try:
            return Tokenizer.from_buffer(data), config
        except Exception as error:  # the library raises no narrower type
            raise UserError(f"tokenizer.json cannot be read by the tokenizers library: {error}.") from error
    if (path := folder / "tokenizer.model").is_file():
        data = path.read_bytes()
        # A tiktoken file is lines of text, a SentencePiece model is binary.
        return _from_tiktoken(data, config) if _RANK_LINE.match(data) else (data, config)
    if (path := folder / "vocab.json").is_file() and (merges := folder / "merges.txt").is_file():
        return _from_vocab_and_merges(path.read_bytes(), merges.read_bytes(), config)
    return None


def _read_config(folder: Path) -> Config:
    """Read the settings in the files next to a vocabulary."""
    names = ("special_tokens_map.json", "tokenizer_config.json", "added_tokens.json", "chat_template.json")
    read: Config = {name: {} for name in names}
    for name in read:
        if (folder / name).is_file():
            try:
                read[name] = json.loads((folder / name).read_bytes())
            except ValueError as error:
                raise UserError(f"{name} is not JSON: {error}.") from error
    try:
        settings = {key: value for key, value in read["tokenizer_config.json"].items() if value is not None}
        config = read["special_tokens_map.json"] | settings
        for key in SPECIAL_TOKEN_KEYS:
            token = config.pop(key, None)
            if token := token["content"] if isinstance(token, dict) else token:
                config[key] = str(token)
        older = {i: {"content": token} for token, i in read["added_tokens.json"].items()}
        config["added_tokens_decoder"] = {
            int(i): {"content": str(token["content"]), "special": bool(token.get("special"))}
            for i, token in config.get("added_tokens_decoder", older).items()
        }
        # chat_template.json belongs to a multimodal processor; the tokenizer's own template comes first.
        template = config.get("chat_template", read["chat_template.json"].get("chat_template"))
        if isinstance(template, list):
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        if not isinstance(template, str | None):
            raise TypeError("chat_template is not a string")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"tokenizer_config.json or a file next to it has an unknown form ({error!r}).") from error
    if (path := folder / "chat_template.jinja").is_file():
        template = path.read_text(encoding="utf-8")
    return config | {"chat_template": template}


def _byte_level(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], added: Iterable[AddedToken], config: Config, pre: str
) -> Tokenizer:
    """A byte-level BPE with the pre-tokenizer named `pre`; adds BOS and EOS as `config` says."""
    try:
        model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in WHOLE_WORDS)
    except Exception as error:  # the library raises no narrower type
        raise UserError(f"The tokenizer's merges do not fit its vocabulary: {error}.") from error
    tokenizer = Tokenizer(model)
    splits = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in PRE_TOKENIZERS[pre]]
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_only])
    tokenizer.decoder = decoders.ByteLevel()
    added = list(added)
    tokenizer.add_special_tokens([token for token in added if token.special])
    tokenizer.add_tokens([token for token in added if not token.special])
    ends = [
        {"id": name, "ids": [vocabulary[token]], "tokens": [token]}
        for name in ("bos", "eos")
        if config.get(f"add_{name}_token") and (token := config.get(f"{name}_token")) in vocabulary
    ]
    template = [name for name in ("bos", "$A", "eos") if name == "$A" or name in [end["id"] for end in ends]]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=ends)
    return tokenizer


def _llama3_special_tokens(first: int) -> dict[int, str]:
    """The 256 special tokens of Llama 3.1, by ids from `first` on; Llama 3 names fewer of the same ids."""
    named = {0: "begin_of_text", 1: "end_of_text", 4: "finetune_right_pad_id", 6: "start_header_id"}
    named |= {7: "end_header_id", 8: "eom_id", 9: "eot_id", 10: "python_tag"}
    reserved = (f"reserved_special_token_{i}" for i in range(256))
    return {first + i: f"<|{named.get(i) or next(reserved)}|>" for i in range(256)}


def _from_tiktoken(ranks: bytes, config: Config) -> tuple[Tokenizer, Config]:
    """Read lines of "base64 rank"; Llama 3's pre-tokenizer and, unless `config` lists others, its special tokens."""
    characters = {byte: ord(char) for byte, char in BYTE_TO_CHAR.items()}
    vocabulary: dict[str, int] = {}
    for number, line in enumerate(ranks.splitlines(), 1):
        try:
            token, rank = line.split()
            vocabulary[base64.b64decode(token, validate=True).decode("latin-1").translate(characters)] = int(rank)
        except ValueError:
            raise UserError(f"Line {number} of the tiktoken file must be a base64 token and its rank.") from None
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise UserError("The ranks in the tiktoken file must be 0, 1, 2, ..., each once.")
    # tiktoken merges the pair that makes the token of lowest rank. All tokens of lower rank inside a token are merged
    # before it, so only one of its splits ever occurs, and the order among its splits does not matter.
    merges = [
        (left, right)
        for token in sorted(vocabulary, key=vocabulary.__getitem__)
        for cut in range(1, len(token))
        if (left := token[:cut]) in vocabulary and (right := token[cut:]) in vocabulary
    ]
    config.setdefault("add_bos_token", True)
    special = {i: token["content"] for i, token in config["added_tokens_decoder"].items()}
    if not special:
        special = _llama3_special_tokens(len(vocabulary))
        names = {"bos": "begin_of_text", "eos": "end_of_text", "eot": "eot_id", "eom": "eom_id"}
        config = {f"{key}_token": f"<|{name}|>" for key, name in names.items()} | config
    vocabulary |= {token: i for i, token in special.items()}
    added = [AddedToken(token, normalized=False, special=True) for token in special.values()]
    return _byte_level(vocabulary, merges, added, config, "llama-bpe"), config


def _from_vocab_and_merges(vocab: bytes, merges: bytes, config: Config) -> tuple[Tokenizer, Config]:
    """Read vocab.json and merges.txt, as GPT-2 and OPT have them."""
    try:
        vocabulary = {token: int(i) for token, i in json.loads(vocab).items()}
        pairs = [(a, b) for a, b in map(str.split, merges.decode().splitlines()) if a != "#version:"]
    except (ValueError, AttributeError, TypeError) as error:
        raise UserError(f"vocab.json and merges.txt are not a byte-level vocabulary: {error}.") from error
    return _byte_level(vocabulary, pairs, [], config, "gpt-2"), config


def from_gguf(metadata: Mapping[str, Any]) -> tuple[Tokenizer | bytes, Config]:
    """Read the vocabulary of a GGUF file's `tokenizer.*` metadata."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise UserError(f"The GGUF file's tokenizer.ggml.model must be 'gpt2' or 'llama', not {kind!r}.")
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(_list(metadata, "tokens", str))]
    if not tokens:
        raise UserError("The GGUF file's tokenizer has no tokens.")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        token, times = Counter(tokens).most_common(1)[0]
        raise UserError(f"The GGUF file's tokenizer lists the token {token!r} {times} times.")
    types = _list(metadata, "token_type", int, len(tokens)) or [NORMAL] * len(tokens)
    ids = {"bos": 1, "eos": 2, "unknown": 0} if kind == "llama" else {}
    template = metadata.get("tokenizer.chat_template")
    config: Config = {"chat_template": template if isinstance(template, str) else None}
    for key, name in _GGUF_KEYS.items():
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id", ids.get(key))
        # As in llama.cpp, ids outside the vocabulary are ignored, and the unknown token cannot be a normal one.
        if isinstance(token_id, int) and 0 <= token_id < len(tokens) and (key, types[token_id]) != ("unknown", NORMAL):
            config[name] = tokens[token_id]
    # Older files do not name the token that ends a turn; llama.cpp recognizes it by its text, too.
    turn_ends = [token for token in ("<end_of_turn>", "<|eot_id|>", "<|im_end|>") if token in vocabulary]
    config |= {"eot_token": turn_ends[0]} if turn_ends and "eot_token" not in config else {}
    pre = metadata.get("tokenizer.ggml.pre", "default")
    config["add_bos_token"] = metadata.get("tokenizer.ggml.add_bos_token", kind == "llama" or pre in WHOLE_WORDS)
    config["add_eos_token"] = metadata.get("tokenizer.ggml.add_eos_token", False)
    if kind == "llama":
        return _sentencepiece_model(tokens, types, metadata, config), config
    if pre not in PRE_TOKENIZERS:
        known = ", ".join(sorted(PRE_TOKENIZERS))
        raise UserError(f"The GGUF file's tokenizer.ggml.pre must be one of {known}, not {pre!r}.")
    merges = [tuple(merge.split(" ")) for merge in _list(metadata, "merges", str)]
    if bad := next((merge for merge in merges if len(merge) != 2), None):
        raise UserError(f"Merges in the GGUF file's tokenizer must be pairs of tokens, not {' '.join(bad)!r}.")
    added = [
        AddedToken(token, normalized=False, special=kind == CONTROL)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (CONTROL, USER_DEFINED)
    ]
    return _byte_level(vocabulary, merges, added, config, pre), config


def _list(metadata: Mapping[str, Any], key: str, kind: type, length: int | None = None) -> list[Any]:
    """A list in the metadata, empty if it is missing; its types and length are checked."""
    values = metadata.get(f"tokenizer.ggml.{key}", [])
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, list) or not {*map(type, values)} <= {kind}:
        raise UserError(f"tokenizer.ggml.{key} must be a list of {kind.__name__} values.")
    if values and length not in (None, len(values)):
        raise UserError(f"tokenizer.ggml.{key} must have {length} entries, one per token, not {len(values)}.")
    return values


def _sentencepiece_model(tokens: list[str], types: list[int], metadata: Mapping[str, Any], config: Config) -> bytes:
    """Serialize a vocabulary as sentencepiece_model.proto defines it, with Llama's settings."""
    scores = _list(metadata, "scores", float, len(tokens))
    if not scores:
        raise UserError("The GGUF file's 'llama' tokenizer needs tokenizer.ggml.scores.")
    types = [kind if NORMAL <= kind <= BYTE else NORMAL for kind in types]
    if UNKNOWN not in types and "unk_token" in config:  # Gemma's files call it a control token
        types[tokens.index(config["unk_token"])] = UNKNOWN
    pieces = (
        _field(1, _field(1, token.encode()) + _field(2, score) + _field(3, kind))
        for token, score, kind in zip(tokens, array("f", scores), types, strict=True)
    )
    names = ((45, "unk_token"), (46, "bos_token"), (47, "eos_token"))
    trainer = _field(3, 2) + _field(4, len(tokens)) + _field(35, types.count(BYTE) == 256)  # 2: byte-pair encoding
    trainer += b"".join(_field(number, config[name].encode()) for number, name in names if name in config)
    prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    normalizer = _field(1, b"identity") + _field(3, bool(prefix)) + _field(4, False) + _field(5, True)
    return b"".join([*pieces, _field(2, trainer), _field(3, normalizer)])


def _field(number: int, value: bytes | float | int) -> bytes:
    """Serialize one protobuf field: length-delimited, 32-bit float or varint."""
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
