"""What the data flow says an expression may be, case by case."""

import ast

import pytest

from genwright.inspect.analysis.abstract_values import Instance, Items, Local, Made, Member, Ref, Text, Value
from genwright.inspect.analysis.dataflow import Flow


def flow(source: str, package: str = "") -> Flow:
    tree = ast.parse(source)
    texts = frozenset(n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return Flow(tree, package, lambda r: r if r.dotted == "m.Model" else None, texts)


def told(value: Value) -> str:
    """A value in a word."""
    match value:
        case Ref():
            return value.dotted
        case Local():
            return f"own {getattr(value.node, 'name', 'lambda')}"
        case Instance():
            return f"object of {told(value.of)}" + (", derived" if value.derived else "")
        case Made():
            return f"from {value.by}"
        case Member():
            return f"{value.name} of {told(value.instance)}"
        case Items():
            return f"[{', '.join(sorted(map(told, value.values)))}]"
        case Text():
            return repr(value.node.value)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import m as n\nx = n.f", ["m.f"]),
        ("from m import f as g\nx = g", ["m.f"]),
        ("from .a import f\nx = f", ["pack.a.f"]),
        ("from ..a import f\nx = f", ["pack.a.f"]),
        ("import a.b\nx = a.b.c", ["a.b.c"]),
        ("from m import *\nx = f", ["m.f"]),
        ("from m import f\ng = f\nh = g\nx = h", ["m.f"]),
        ("import m\nx = m.Model()", ["object of m.Model"]),
        ("import m\nx = m.Model().to('cuda').eval()", ["object of m.Model, derived"]),
        ("import m, torch\nx = torch.compile(m.Model())", ["object of m.Model, derived"]),
        ("import m\nx = m.other()", ["from m.other"]),
        ("import m\nx = m.other().f", ["f of from m.other"]),
        ("import m\nx = m.f if y else m.g", ["m.f", "m.g"]),
        ("import m\nx = None or m.f", ["m.f"]),
        ("import m\na, b = m.f, m.g\nx = b", ["m.g"]),
        ("import m\na, (b, *c) = 1, [m.f, m.g, m.h]\nx = c", ["[m.f, m.g, m.h]"]),
        ("import m\nd = {'k': m.f}\nx = d['k']", ["m.f"]),
        ("import m\nfor y in [m.f, m.g]: x = y", ["m.f", "m.g"]),
        ("import m\nx = [y for y in [m.f]]", ["[m.f]"]),
        ("import m\nwith m.Model() as x: pass", ["object of m.Model"]),
        ("import m\nif (x := m.f): pass", ["m.f"]),
        ("import m\ndef g(): return m.f\nx = g()", ["m.f"]),
        ("import m\ng = lambda: m.f\nx = g()", ["m.f"]),
        ("import m\ndef g(a, *, b=m.g):\n    global x\n    x = [a, b]\ng(m.f)", ["[m.f, m.g]", "[m.g]"]),
        ("import m\nclass A:\n    def __init__(self, a): self.a = a\nx = A(m.f).a", ["m.f"]),
        ("import m\nclass A:\n    a = m.f\nclass B(A): pass\nx = B().a", ["m.f"]),
        ("import m\nclass A:\n    @classmethod\n    def make(cls): return cls\nx = A.make()", ["own A"]),
        ("import m\nclass A(m.Model):\n    def f(self): return super()\nx = A().f()", ["object of m.Model"]),
        ("import m\ndef g(a: m.Model):\n    global x\n    x = a", ["object of m.Model"]),
        ("async def g(): return 't'\nx = await_me = None\nasync def h():\n    global x\n    x = await g()", ["'t'"]),
        ("p.add_argument('--img', default='t')\nx = p.parse_args().img", ["'t'", "img of from p.parse_args"]),
        ("from pathlib import Path\nx = Path('t')", ["'t'", "from pathlib.Path"]),
        ("def g(n):\n    return g(n)\nx = g(1)", []),
        ("x = y\ny = x", []),
    ],
)
def test_values(source: str, expected: list[str]) -> None:
    known = flow(source, "pack.sub" if "from .." in source else "pack")
    name = ast.Name("x", ast.Load())
    known.scopes.of_node[name] = known.scopes.module
    assert sorted(map(told, known.values(name))) == expected


def test_callers_and_definitions() -> None:
    known = flow("def f(): ...\ndef g(): f()\nf()\nh = f\nh()\nclass A:\n    def __init__(self): ...\nA()\n")
    f, _, *_ = [n for n in known.nodes if isinstance(n, ast.FunctionDef)]
    init = next(n for n in known.nodes if getattr(n, "name", "") == "__init__")
    assert [c.lineno for c in known.callers(f)] == [3, 5, 2] and [c.lineno for c in known.callers(init)] == [8]


def test_many_values_are_not_told_apart() -> None:
    names = ", ".join(f"m.f{i}" for i in range(100))
    known = flow("import m\n" + "".join(f"x = m.f{i}\n" for i in range(100)) + f"y = [{names}]\nz = x\n")
    name = next(n for n in known.nodes if isinstance(n, ast.Name) and n.id == "x" and isinstance(n.ctx, ast.Load))
    assert 0 < len(known.values(name)) < 100
