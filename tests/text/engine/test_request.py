"""What a request makes of its tokens: ends, stop strings, pieces, and parameters that make sense."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from genwright import SamplingParams
from genwright.errors import UserError
from genwright.text.engine.request import Request


class Letters:
    """A detokenizer whose token n is the n-th of some pieces of text."""

    PIECES = ("a", "b", "ab", "ba", " ", "aab", "")

    def push(self, token: int) -> str:
        return self.PIECES[token % len(self.PIECES)]

    def end(self) -> str:
        return ""


@given(
    st.lists(st.integers(0, 6), max_size=30),
    st.lists(st.text("ab ", min_size=1, max_size=4), max_size=3),
    st.integers(0, 8),
)
def test_text_ends_before_the_first_stop_string_and_pieces_never_show_part_of_one(tokens, stops, least):
    params = SamplingParams(stop=tuple(stops), max_new_tokens=1000, min_new_tokens=least)
    r = Request([1], params, 0, detokenizer=Letters())
    shown = ""
    for token in tokens:
        r.add(token)
        shown += r.take().text
        assert least or not any(stop in shown for stop in stops)
        if r.finish_reason:
            break
    r.finish("length")
    shown += r.take().text
    # A stop string counts if the token that completes it comes after the first `least` tokens.
    free = len("".join(Letters().push(token) for token in r.output[:least]))
    whole = "".join(Letters().push(token) for token in r.output)
    cuts = [whole.find(stop, max(0, free - len(stop) + 1)) for stop in stops]
    cuts = [cut for cut in cuts if cut >= 0]
    assert shown == r.text == (whole[: min(cuts)] if cuts else whole)
    assert (r.finish_reason == "stop") == bool(cuts)
    assert not cuts or len(r.output) > least


def test_a_stop_string_costs_the_same_however_long_it_is():
    class Counted(str):
        read = 0

        def __getitem__(self, index):
            Counted.read += 1
            return super().__getitem__(index)

    r = Request([1], SamplingParams(stop=(Counted("ab" * 100_000),), max_new_tokens=1000), 0, detokenizer=Letters())
    shown = ""
    for token in (2, 2, 2, 2, 0, 3, 1) * 20:  # abababab a ba b: near the beginning, again and again
        r.add(token)
        shown += r.take().text
    r.finish("length")
    assert shown + r.take().text == r.text == "abababababab" * 20
    assert Counted.read < 10 * len(r.text)


def test_ends_by_id_length_and_cancellation():
    eos = frozenset({2})
    r = Request([1], SamplingParams(max_new_tokens=3), 0, eos, Letters())
    r.add(0)
    r.add(2)
    assert (r.finish_reason, r.output, r.text) == ("stop", [0, 2], "a"), "the end's own text is not told"
    ignoring = Request([1], SamplingParams(max_new_tokens=3, ignore_eos=True, stop_ids=(5,)), 0, eos, Letters())
    for token in (2, 2, 2):
        ignoring.add(token)
    assert (ignoring.finish_reason, len(ignoring.output)) == ("length", 3)
    stopped = Request([1], SamplingParams(ignore_eos=True, stop_ids=(5,)), 0, eos)
    stopped.add(5)
    assert stopped.finish_reason == "stop"
    stopped.finish("cancelled")
    assert stopped.finish_reason == "stop", "the first reason stays"


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"temperature": math.nan},
        {"temperature": "hot"},
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"repetition_penalty": 0},
        {"n": 0},
        {"max_new_tokens": 0},
        {"min_new_tokens": -1},
        {"logprobs": -1},
        {"stop": ("",)},
        {"stop": 5},
        {"stop_ids": 5},
        {"ignore_eos": 1},
        {"logit_bias": [1]},
        {"stop_ids": ("x",)},
        {"seed": 1.5},
        {"logit_bias": {1: math.nan}},
        {"logit_bias": {"1": 0.5}},
        {"logit_bias": {True: 5}},
        {"logit_bias": {1: True}},
        {"logit_bias": {1: math.inf}},
        {"logit_bias": {1: -(10**400)}},
        {"stop_ids": (True,)},
        {"stop_ids": "12"},
        {"seed": True},
        {"seed": 1 << 64},
        {"n": 10**5000},
        {"top_p": np.array([0.5])},
        {"stop": [b"end"]},
    ],
    ids=lambda wrong: f"{wrong!s:.40}" if wrong != {"n": 10**5000} else "long",
)
def test_parameters_out_of_range_are_one_sentence(wrong):
    with pytest.raises(UserError) as error:
        SamplingParams(**wrong)
    assert "\n" not in str(error.value)
    assert next(iter(wrong)) in str(error.value)


def test_a_bare_stop_string_is_one_stop():
    assert SamplingParams(stop="end").stop == ("end",)


def test_numbers_of_numpy_and_torch_are_numbers():
    given = SamplingParams(
        temperature=np.float32(0.5),
        top_k=torch.tensor(3),
        logit_bias={np.int64(5): np.float64(1.5), torch.tensor(6): -math.inf},
        seed=np.uint64(7),
        stop=np.array(["a", "b"]),
        stop_ids=torch.tensor([8, 9]),
        ignore_eos=np.bool_(True),
    )
    expected = SamplingParams(
        temperature=0.5,
        top_k=3,
        logit_bias={5: 1.5, 6: -math.inf},
        seed=7,
        stop=("a", "b"),
        stop_ids=(8, 9),
        ignore_eos=True,
    )
    assert given == expected
    assert repr(given) == repr(expected), "as Python's own numbers, which JSON can hold"
