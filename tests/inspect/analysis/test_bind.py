"""Binding agrees with Python's own binder, and signatures survive being written."""

import ast
import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genwright.errors import UserError
from genwright.inspect.analysis.bind import Signature, bind, may_name

SIGNATURES = [
    "()",
    "(a)",
    "(a, b=1)",
    "(a, /, b, *, c=2)",
    "(a, b=1, *rest, c, **more)",
    "(*, c: int = 3) -> list[int]",
    "(a, /, *rest)",
    "(**more)",
]


def call(text: str) -> ast.Call:
    node = ast.parse(text, mode="eval").body
    assert isinstance(node, ast.Call)
    return node


def real(signature: str) -> inspect.Signature:
    names: dict = {}
    exec(f"def f{signature}: ...", names)
    return inspect.signature(names["f"])


@pytest.mark.parametrize("text", SIGNATURES)
def test_a_signature_is_written_as_python_writes_it(text: str) -> None:
    assert str(Signature.parse(text)) == text
    assert str(Signature.parse(text)) == str(real(text)).replace("typing.", "")


@given(st.sampled_from(SIGNATURES), st.integers(0, 3), st.sets(st.sampled_from("abcd")))
def test_binding_agrees_with_inspect(text: str, positional: int, keywords: set[str]) -> None:
    names = sorted(keywords)
    node = call(f"f({', '.join([str(i) for i in range(positional)] + [f'{k}={k}' for k in names])})")
    binding = bind(node, Signature.parse(text))
    try:
        bound = real(text).bind(*map(str, range(positional)), **{k: k for k in names})
    except TypeError:
        assert binding.problem
        return
    assert not binding.problem
    for argument in binding.arguments:
        if argument.parameter in bound.arguments:
            assert bound.arguments[argument.parameter] == argument.value


@given(st.sampled_from(SIGNATURES), st.integers(0, 3))
def test_naming_positional_arguments_changes_nothing(text: str, positional: int) -> None:
    node = call(f"f({', '.join(str(i) for i in range(positional))})")
    names = may_name(Signature.parse(text), node, bind(node, Signature.parse(text)))
    try:
        before = real(text).bind(*range(positional))
    except TypeError:
        return
    named = {n: i for i, n in enumerate(names) if n is not None}
    after = real(text).bind(*[i for i, n in enumerate(names) if n is None], **named)
    assert before.arguments == after.arguments


def test_stars_leave_positions_open() -> None:
    signature = Signature.parse("(a, b=1, **more)")
    assert [a.parameter for a in bind(call("f(*x, b=2, **y)"), signature).arguments] == [None, "b", None]
    assert may_name(signature, call("f(1, *x)"), bind(call("f(1, *x)"), signature)) == [None, None]


def test_a_signature_that_is_not_python_is_one_sentence() -> None:
    with pytest.raises(UserError, match="is not Python"):
        Signature.parse("(a, a b)")
