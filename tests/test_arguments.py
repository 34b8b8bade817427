from dataclasses import dataclass

import numpy as np
import pytest
import torch

from genwright.arguments import check_settings, one_of, parse_gigabytes, setting, whole_number
from genwright.errors import UserError


@dataclass(frozen=True)
class Settings:
    rate: float | None = setting(None, "A rate.", between=(0.0, 1.0))
    unchecked: object = None

    def __post_init__(self) -> None:
        check_settings(self)


def test_numbers_of_numpy_and_torch_are_allowed():
    assert whole_number("n", np.int8(3), 0, 5) == whole_number("n", torch.tensor(3), 0, 5) == 3
    assert Settings(torch.tensor(0.5), "x") == Settings(0.5, "x") and Settings().rate is None


@pytest.mark.parametrize(
    ("text", "gigabytes"),
    [("16", 16), ("16 GiB", 17.179869184), ("800MB", 0.8), ("10tb", 10_000), ("512Mi", 0.536870912)],
)
def test_sizes_are_in_gigabytes(text, gigabytes):
    assert parse_gigabytes("cpu_mem", text) == gigabytes


@pytest.mark.parametrize(
    ("check", "sentence"),
    [
        (lambda: whole_number("n", 6, 0, 5), "n must be a whole number between 0 and 5, not 6."),
        (lambda: whole_number("n", True, 0, 5), "n must be a whole number between 0 and 5, not True."),
        *(
            (
                lambda text=text: parse_gigabytes("cpu_mem", text),
                f"cpu_mem must be a size such as 16GiB, 24GB or 800MB, not '{text}'.",
            )
            for text in ("5B", "1e9", "-5", "", "iB")
        ),
        (lambda: Settings("1"), "rate must be a number between 0.0 and 1.0, not '1'."),
        (lambda: one_of("colour", ["red"], ("red", "blue")), "colour must be one of red, blue, not ['red']."),
    ],
)
def test_a_wrong_value_is_one_sentence(check, sentence):
    with pytest.raises(UserError) as caught:
        check()
    assert str(caught.value) == sentence
