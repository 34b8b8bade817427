"""A backward slice keeps the lines that decide a call's arguments, and leaves out those that cannot."""

import ast

import pytest

from genwright.inspect.analysis.backward_slice import backward_slice
from genwright.inspect.analysis.dataflow import Flow


def kept(lines: list[str]) -> str:
    """The lines that stay for the call of `target`, as letters from a."""
    tree = ast.parse("\n".join(lines))
    flow = Flow(tree, "", lambda reference: None)
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    sites = {c: c.func.id == "target" for c in calls if c.func.id in ("target", "model")}
    target = next(c for c in sites if c.func.id == "target")
    stay = {statement.lineno for statement in backward_slice(flow, target, sites)}
    return "".join(chr(ord("a") + line - 1) for line in sorted(stay))


CASES = {
    "only what is read": (["x = 1", "y = 2", "target(x)"], "ac"),
    "what follows the call": (["x = []", "target(x)", "x.append(1)"], "ab"),
    "what a loop runs again": (["x = []", "for i in y():", "    target(x)", "    x.append(1)"], "abcd"),
    "what changes an object": (["x = [1]", "x.append(2)", "x[0] = 3", "print(x)", "target(x)"], "abce"),
    "what changes it by another name": (["x = []", "y = x", "y.append(1)", "z = x", "target(x)"], "abce"),
    "what changes it behind a star": (
        ["def f(a, b):", "    b.append(1)", "x = []", "f(*[0, x])", "target(x)"],
        "abcde",
    ),
    "attributes of any object": (["a.b = 1", "a.c = 2", "target(x.b)"], "ac"),
    "all attributes of an object as a whole": (["a = A()", "a.b = 1", "c.b = 2", "target(a)"], "abd"),
    "branches": (["if f():", "    x = 1", "    y = 2", "else:", "    x = 3", "target(x)"], "abef"),
    "a recorded result needs no arguments": (["p = 1", "r = model(p)", "target(r)"], "bc"),
    "the functions on the way": (
        ["def f(v):", "    log = v", "    return v + k", "def g():", "    pass", "k = 1", "g()", "target(f(2))"],
        "acfh",
    ),
    "the callers of its function": (
        ["def f(v):", "    target(v)", "def g(w):", "    f(w)", "x = 1", "y = 2", "g(x)"],
        "abcdeg",
    ),
    "seeds and draws stay together": (
        ["import random", "random.seed(1)", "u = random.random()", "print(1)", "target(random.random())"],
        "abce",
    ),
    "questions stay together": (["a = input()", "b = input()", "print(a)", "target(b)"], "abd"),
    "files that are read again": (["open('f', 'w').write('1')", "x = 2", "target(open('f').read())"], "ac"),
    "any statement of a try may fail": (
        ["try:", "    import there", "    x = 1", "except ImportError:", "    x = 2", "    y = 3", "target(x)"],
        "abceg",
    ),
    "break and continue": (
        [
            "for i in z:",
            "    if i == 1:",
            "        continue",
            "    n = i",
            "    if n > 3:",
            "        break",
            "target(i)",
        ],
        "abcdefg",
    ),
    "methods and attributes that are used": (
        [
            *("class A:", "    def __init__(self):", "        self.v = 1", "        self.w = 2"),
            *("    def get(self):", "        return self.v", "    def other(self):", "        return self.w"),
            "target(A().get())",
        ],
        "abcefi",
    ),
    "globals that a function sets": (
        ["n = 0", "def count():", "    global n", "    n += 1", "count()", "print(n)", "target(n)"],
        "abcdeg",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_stays(case: str) -> None:
    lines, expected = CASES[case]
    assert kept(lines) == expected


def test_everything_stays_where_the_callers_cannot_be_told() -> None:
    assert kept(["class A:", "    def f(self):", "        target(1)", "x = 1", "run(A)"]) == "abcde"
