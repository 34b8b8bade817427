"""Damaged GGUF files: each raises a one-sentence error, and counts in the file allocate nothing unchecked."""

import random
import resource
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from text.checkpoints.tiny_gguf import tiny_model, write_gguf

from genwright.errors import UserError
from genwright.text.checkpoints.gguf import GGUF

Q = b"blk.0.attn_q.weight"
TOKENS = b"tokenizer.ggml.tokens"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", tiny_model("llama"), "Q8_0").read_bytes()


def put(data: bytes, after: bytes, skip: int, form: str, value: int) -> bytes:
    """Overwrite a number that lies `skip` bytes after the end of a name."""
    at = data.index(after) + len(after) + skip
    return data[:at] + struct.pack(f"<{form}", value) + data[at + struct.calcsize(f"<{form}") :]


# After a tensor's name: u32 dimensions, u64 each, u32 type, u64 offset. After a key: u32 type, an array's u32 and u64.
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "begin with the letters GGUF": lambda data: b"GGML" + data[4:],
    "its version is 1;": lambda data: data[:4] + struct.pack("<I", 1) + data[8:],
    "its version is 50331648": lambda data: data[:4] + struct.pack(">I", 3) + data[8:],
    "declares 1099511627776 metadata entries": lambda data: data[:16] + struct.pack("<Q", 1 << 40) + data[24:],
    "declares 1099511627776 tensors": lambda data: data[:8] + struct.pack("<Q", 1 << 40) + data[16:],
    "declares 18446744073709551615 strings": lambda data: put(data, TOKENS, 8, "Q", (1 << 64) - 1),
    "declares 1073741824 array elements": lambda data: put(data, b"ggml.token_type", 8, "Q", 1 << 30),
    "unknown type 9": lambda data: put(data, TOKENS, 4, "I", 9),
    "unknown type 77": lambda data: put(data, b"llama.block_count", 0, "I", 77),
    "'llama.block_count' twice": lambda data: data.replace(
        b"llama.context_length", b"llama.block_count".ljust(20, b"X")
    ).replace(struct.pack("<Q", 20) + b"llama.block_countXXX", struct.pack("<Q", 17) + b"llama.block_count"),
    "is not UTF-8": lambda data: data.replace(b"llama.block_count", b"llama.block_co\xffnt"),
    "header does not end within": lambda data: data[: data.index(b"output_norm.weight") + 20],
    "'output.weight' ends at byte": lambda data: data[:-8],
    "a dimension of a tensor is 0": lambda data: put(data, Q, 4, "Q", 0),
    "a tensor has 9 dimensions": lambda data: put(data, Q, 0, "I", 9),
    "not a multiple of a Q8_0 block": lambda data: put(data, Q, 4, "Q", 63),
    "'blk.0.attn_q.weight' as IQ2_XS; only F32, F16": lambda data: put(data, Q, 20, "I", 17),
    "'blk.0.attn_q.weight' as type 99": lambda data: put(data, Q, 20, "I", 99),
    "is not a multiple of 32": lambda data: put(data, Q, 24, "Q", 33),
    "ends at byte 18446744073": lambda data: put(data, Q, 24, "Q", (1 << 64) - 32),
    "'token_embd.weight' and 'blk.0.attn_q.weight' overlap": lambda data: put(data, Q, 24, "Q", 32),
    "two of its tensors have the same name": lambda data: data.replace(b"blk.0.attn_k", b"blk.0.attn_q"),
}


@pytest.mark.parametrize("sentence", DAMAGE)
def test_each_kind_of_damage_is_one_sentence(sentence: str, whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(DAMAGE[sentence](whole))
    with pytest.raises(UserError) as error:
        GGUF(path)
    assert str(error.value).startswith(f"{path} ") and sentence in str(error.value)
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


@pytest.mark.parametrize("alignment", [0, 4, 12])
def test_an_alignment_that_floats_cannot_have(alignment: int, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), general__alignment=64)
    GGUF(path)
    path.write_bytes(put(path.read_bytes(), b"general.alignment", 4, "I", alignment))
    with pytest.raises(UserError, match=f"general.alignment is {alignment} "):
        GGUF(path)


def test_files_that_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(UserError, match=r"empty\.gguf is empty"):
        GGUF(tmp_path / "empty.gguf")
    with pytest.raises(UserError, match="cannot be read: No such file"):
        GGUF(tmp_path / "nowhere.gguf")
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        GGUF(tmp_path)


def test_a_format_is_known_by_content(whole: bytes, tmp_path: Path) -> None:
    for name, data, expected in [("model.bin", whole, True), ("model.gguf", b"PK\3\4", False), ("empty", b"", False)]:
        (tmp_path / name).write_bytes(data)
        assert GGUF.recognises(tmp_path / name) is expected


def test_metadata_equals_the_gguf_packages(tmp_path: Path) -> None:
    path = tmp_path / "all.gguf"
    write_gguf(path, tiny_model("llama"), some__text="Grüße\n🤗", some__float=0.1, some__integer=7)
    fields = {k: f.contents() for k, f in gguf.GGUFReader(path).fields.items() if not k.startswith("GGUF.")}
    assert GGUF(path).metadata == fields


def test_version_2_is_read(whole: bytes, tmp_path: Path) -> None:
    (tmp_path / "old.gguf").write_bytes(whole[:4] + struct.pack("<I", 2) + whole[8:])
    assert "model.norm.weight" in GGUF(tmp_path / "old.gguf").names()


def test_tokens_need_not_be_text(whole: bytes, tmp_path: Path) -> None:
    (tmp_path / "bytes.gguf").write_bytes(whole.replace("é".encode(), b"\xc3\x28"))
    assert "\ufffd(" in GGUF(tmp_path / "bytes.gguf").metadata["tokenizer.ggml.tokens"]


def mutate(whole: bytes, rng: random.Random) -> bytes:
    """Damage a copy, mostly in its header."""
    data = bytearray(whole)
    header = whole.index(b"output_norm.weight") + 40
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(header if rng.random() < 0.9 else len(whole) - 8)
        kind = rng.randrange(4)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.randrange(256)
        elif kind == 2:  # a huge or small count, length, offset or dimension
            struct.pack_into("<Q", data, at, rng.choice(((1 << 64) - 1, 1 << 63, 1 << 40, 1 << 31, 1 << 20, 33, 1, 0)))
        else:  # another type
            struct.pack_into("<I", data, at, rng.randrange(42))
    return bytes(data if rng.random() < 0.9 else data[: rng.randrange(len(data))])


def test_no_mutation_does_worse_than_one_sentence(whole: bytes, tmp_path: Path, full_size: bool) -> None:
    mutations = 2000 if full_size else 300
    rng = random.Random(0)
    path = tmp_path / "mutated.gguf"
    opened = 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(mutations):
        path.write_bytes(mutate(whole, rng))
        try:
            checkpoint = GGUF(path)
            for name in checkpoint.names():
                assert checkpoint.tensor(name).shape == checkpoint.shape(name)
            opened += 1
        except UserError as error:
            assert str(error) and "\n" not in str(error), number
    assert 0.05 < opened / mutations < 0.95  # both happen
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 32 << 10  # kilobytes
