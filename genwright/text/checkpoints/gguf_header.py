"""The header of a GGUF file: its metadata and its table of tensors."""

import mmap
import struct
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

from genwright.errors import UserError
from genwright.quant.ggml import OTHER_TYPES, TYPES

MAGIC = b"GGUF"
# Types of metadata values: the struct codes of numbers, strings and arrays.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor's bytes are."""

    file: mmap.mmap
    path: str
    name: str
    shape: tuple[int, ...]  # outermost dimension first
    kind: int  # a key of quant.ggml.TYPES
    start: int
    size: int  # in bytes

    def release(self) -> None:
        """Give back the memory of the pages that were read; they are read again if they are needed."""
        if hasattr(mmap, "MADV_DONTNEED"):
            first = self.start // mmap.PAGESIZE * mmap.PAGESIZE
            self.file.madvise(mmap.MADV_DONTNEED, first, self.start + self.size - first)


class Header:
    """Reads the bytes before the weights; checks every count, length and offset against the file's size."""

    def __init__(self, file: mmap.mmap, path: str) -> None:
        self._file, self.path, self._at = file, path, 0
        if self._bytes(4) != MAGIC:
            raise self.wrong("it does not begin with the letters GGUF")
        version = self._number("I")
        if version not in (2, 3):
            raise self.wrong(f"its version is {version}; it must be 2 or 3, little-endian")
        tensor_count, pair_count = self._number("Q"), self._number("Q")
        self._check_count(pair_count, 13, "metadata entries")
        self.metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = self._name()
            if key in self.metadata:
                raise self.wrong(f"its metadata has {key!r:.80} twice")
            self.metadata[key] = self._value(self._number("I"))
        self._check_count(tensor_count, 32, "tensors")
        # name, shape, kind, offset into the data
        table = [(self._name(), self._shape(), self._number("I"), self._number("Q")) for _ in range(tensor_count)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 8 or alignment % 8:
            raise self.wrong(f"its general.alignment is {alignment!r:.80} and must be a multiple of 8")
        self._alignment, self._data = alignment, -(-self._at // alignment) * alignment
        self.tensors = [self._tensor(*row) for row in table]
        for one, following in pairwise(sorted(self.tensors, key=lambda tensor: tensor.start)):
            if one.start + one.size > following.start:
                raise self.wrong(f"{one.name!r:.80} and {following.name!r:.80} overlap")

    def wrong(self, what: str) -> UserError:
        return UserError(f"{self.path} is not a valid GGUF file: {what}.")

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> StoredTensor:
        if kind not in TYPES:
            known = ", ".join(block.name for block in TYPES.values())
            what = OTHER_TYPES.get(kind, f"type {kind}")
            raise UserError(f"{self.path} stores {name!r:.80} as {what}; only {known} are supported.")
        block = TYPES[kind]
        if shape[-1] % block.elements:
            raise self.wrong(f"{name!r:.80} has rows of {shape[-1]} elements, not a multiple of a {block.name} block")
        if offset % self._alignment:
            raise self.wrong(f"{name!r:.80} has the offset {offset}, which is not a multiple of {self._alignment}")
        start, size = self._data + offset, prod(shape) // block.elements * block.bytes
        if (end := start + size) > len(self._file):
            raise self.wrong(f"{name!r:.80} ends at byte {end} of {len(self._file)}; the copy may be incomplete")
        return StoredTensor(self._file, self.path, name, shape, kind, start, size)

    def _shape(self) -> tuple[int, ...]:
        count = self._number("I")
        if not 1 <= count <= 4:
            raise self.wrong(f"a tensor has {count} dimensions; there must be 1 to 4")
        shape = tuple(self._number("Q") for _ in range(count))[::-1]  # the file lists the innermost first
        if 0 in shape:
            raise self.wrong("a dimension of a tensor is 0")
        return shape

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._strings(1)[0]
        if kind != ARRAY:
            return self._number(self._code(kind))
        kind, count = self._number("I"), self._number("Q")
        if kind == STRING:
            return self._strings(count)
        code = self._code(kind)
        size = struct.calcsize(f"<{code}")
        self._check_count(count, size, "array elements")
        return list(struct.unpack(f"<{count}{code}", self._bytes(count * size)))

    def _code(self, kind: int) -> str:
        """The struct code of a number; arrays of arrays are not allowed."""
        if kind not in NUMBERS:
            raise self.wrong(f"a metadata value has the unknown type {kind}")
        return NUMBERS[kind]

    def _strings(self, count: int) -> list[str]:
        """Vocabularies have more than 100,000 strings, so this loop calls no method of ours."""
        self._check_count(count, 8, "strings")
        file, at, end, strings = self._file, self._at, len(self._file), []
        length = struct.Struct("<Q").unpack_from
        for _ in range(count):
            start = at + 8
            at = start + length(file, at)[0] if start <= end else start
            if at > end:
                raise self._truncated()
            strings.append(file[start:at].decode("utf-8", "replace"))
        self._at = at
        return strings

    def _name(self) -> str:
        try:
            return self._bytes(self._number("Q")).decode("utf-8")
        except UnicodeDecodeError:
            raise self.wrong("a name in it is not UTF-8") from None

    def _number(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self._bytes(struct.calcsize(f"<{code}")))[0]

    def _bytes(self, count: int) -> bytes:
        if count > len(self._file) - self._at:
            raise self._truncated()
        self._at += count
        return self._file[self._at - count : self._at]

    def _check_count(self, count: int, size: int, what: str) -> None:
        """Raise before anything is allocated; `size` is the smallest size of an item in bytes."""
        if count * size > len(self._file) - self._at:
            raise self.wrong(f"it declares {count} {what}, more than its {len(self._file)} bytes can hold")

    def _truncated(self) -> UserError:
        return self.wrong(f"its header does not end within its {len(self._file)} bytes; the copy may be incomplete")
