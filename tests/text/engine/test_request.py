"""What a request makes of its tokens: ends, stop strings, pieces, and parameters that make sense."""

import math

import pytest
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


@given(st.lists(st.integers(0, 6), max_size=30), st.lists(st.text("ab ", min_size=1, max_size=4), max_size=3))
def test_text_ends_before_the_first_stop_string_and_pieces_never_show_part_of_one(tokens, stops):
    r = Request([1], SamplingParams(stop=tuple(stops), max_new_tokens=1000), 0, detokenizer=Letters())
    shown = ""
    for token in tokens:
        r.add(token)
        shown += r.take().text
        assert not any(stop in shown for stop in stops)
        if r.finish_reason:
            break
    r.finish("length")
    shown += r.take().text
    whole = "".join(Letters().push(token) for token in r.output)
    cuts = [whole.find(stop) for stop in stops if stop in whole]
    assert shown == r.text == (whole[: min(cuts)] if cuts else whole)
    assert (r.finish_reason == "stop") == bool(cuts)


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
    ],
    ids=str,
)
def test_parameters_out_of_range_are_one_sentence(wrong):
    with pytest.raises(UserError) as error:
        SamplingParams(**wrong)
    assert "\n" not in str(error.value)
    assert next(iter(wrong)) in str(error.value)


def test_a_bare_stop_string_is_one_stop():
    assert SamplingParams(stop="end").stop == ("end",)
