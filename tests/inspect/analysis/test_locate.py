"""Where a call is an interface's, where it may be, and where nothing tells."""

import ast

import pytest

from genwright.inspect.analysis.locate import locate
from genwright.inspect.analysis.manifest import Manifest, parse_manifest

MANIFEST = parse_manifest(
    {
        "project": "p",
        "interface": [
            {"name": "generate", "module": "pack.model", "signature": "(x, n=1)"},
            {"name": "Net", "kind": "class", "module": "pack.model", "factories": {"load": "(path)"}},
            {"name": "Net.predict", "module": "pack.model", "signature": "(x)"},
            {"name": "Net.__call__", "module": "pack.model", "signature": "(x)"},
        ],
    },
    "test",
)
NET = "from pack.model import Net\n"
HELD = "from functools import partial\nfrom pack.model import generate\n"


def sites(source: str, manifest: Manifest = MANIFEST) -> list[str]:
    found = locate(ast.parse(source), manifest, "script").sites
    return [f"{s.call.lineno} {s.interface.name} {s.kind}" + (" on" if s.on_object else "") for s in found]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from pack.model import generate\ngenerate(1)", ["2 generate function"]),
        ("from pack import generate\ngenerate(1)", ["2 generate function"]),
        ("import pack.model as m\nm.generate(1)", ["2 generate function"]),
        ("from pack import model\ng = model.generate\ng(1)", ["3 generate function"]),
        ("from other.place import generate\ngenerate(1)", []),
        ("def generate(x): ...\ngenerate(1)", []),
        (NET + "n = Net()\nn.predict(1)\nn(2)",
         ["2 Net construction", "3 Net.predict method", "4 Net.__call__ method"]),
        (NET + "n = Net.load('p')\nn.predict(1)", ["2 Net construction", "3 Net.predict method"]),
        (NET + "a, b = Net(), Net()\nb.predict(1)",
         ["2 Net construction", "2 Net construction", "3 Net.predict method on"]),
        (NET + "for i in y:\n    n = Net()\n    n.predict(1)", ["3 Net construction", "4 Net.predict method on"]),
        (NET + "Net().predict(1)", ["2 Net.predict method on", "2 Net construction"]),
        (NET + "n = Net().to('cpu').eval()\nn.predict(1)", ["2 Net construction", "3 Net.predict method on"]),
        (NET + "def f(n: Net): n.predict(1)", ["2 Net.predict method on"]),
        (NET + "class A:\n    def __init__(self): self.n = Net()\n    def f(self): self.n.predict(1)\nA().f()",
         ["3 Net construction", "4 Net.predict method"]),
        (HELD + "f = partial(generate, n=2)\nf(1)", ["4 generate function on"]),
        (HELD + "f = partial(partial(generate, 1), n=2)\nf()", ["4 generate function on"]),
        (HELD + "m = {'a': generate, 'b': print}\nm[k](1)", ["4 generate function on"]),
        (HELD + "m = [generate]\nm[0](1)\nfor g in m:\n    g(2)", ["4 generate function on", "6 generate function"]),
        (NET + "n = Net()\nm = {'a': n.predict}\nm['a'](1)", ["2 Net construction", "4 Net.predict method on"]),
        (NET + "class Mine(Net): ...\nm = Mine()\nm.predict(1)", ["4 Net.predict method on"]),
    ],
)  # fmt: skip
def test_sites(source: str, expected: list[str]) -> None:
    assert sites(source) == expected


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("from other import thing\nthing().predict(1)", "it is what other.thing gives, whose class is not known"),
        ("def f(x): x.predict(1)", "nothing tells what it is"),
        (NET + "Net.predict(n, 1)", "called on the class itself"),
        ("from pack.model import generate\nprint(f'{generate(1)}')", "inside an f-string"),
        ("from pack.model import generate\nmap(generate, [1])", "handed on as a value"),
        (HELD + "map(partial(generate, 1), [1])", "handed on as a value"),
        (HELD + "m = {'a': generate}\nrun(m)", "handed on as a value"),
        ("from pack.model import generate\nfrom o import f\ng = f if y else generate\ng(1)", "may be generate or o.f"),
    ],
)
def test_what_is_not_resolved_says_why(source: str, reason: str) -> None:
    location = locate(ast.parse(source), MANIFEST, "script")
    assert any(reason in u.reason for u in location.unresolved), location.unresolved


def test_calls_inside_an_interface_are_the_models() -> None:
    manifest = parse_manifest({"project": "p", "interface": [{"name": "generate", "module": "script"}]}, "test")
    source = "def generate(n):\n    return generate(n - 1) if n else 0\ngenerate(3)\n"
    assert sites(source, manifest) == ["3 generate function"]
    assert [i.name for i, _ in locate(ast.parse(source), manifest, "script").defined] == ["generate"]
