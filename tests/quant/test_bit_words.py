"""Words of small integers, unpacked value by value."""

import pytest
import torch

from genwright.quant.bit_words import BITS, unpack, unpack_awq

WORDS = torch.randint(-(1 << 31), 1 << 31, (3, 5), generator=torch.Generator().manual_seed(0), dtype=torch.int32)


@pytest.mark.parametrize("bits", BITS)
def test_the_lowest_bits_come_first(bits: int) -> None:
    expected = [[word >> at & (1 << bits) - 1 for word in row for at in range(0, 32, bits)] for row in WORDS.tolist()]
    assert unpack(WORDS, bits).tolist() == expected
    assert unpack(WORDS.T.contiguous().T, bits).tolist() == expected


def test_awq_interleaves_the_nibbles_of_a_word() -> None:
    for row, values in zip(WORDS.tolist(), unpack_awq(WORDS).unflatten(1, (-1, 8)).tolist(), strict=True):
        for word, eight in zip(row, values, strict=True):
            assert sum(eight[column] << 4 * place for place, column in enumerate((0, 2, 4, 6, 1, 3, 5, 7))) == word % (
                1 << 32
            )
