"""Edits of text: what is asked for changes, and nothing else, whatever the layout."""

import ast

import pytest

from genwright.errors import UserError
from genwright.inspect.analysis.locate import locate
from genwright.inspect.analysis.manifest import parse_manifest
from genwright.inspect.rewrite.call_edits import call_edits
from genwright.inspect.rewrite.edits import Edits, Source, apply

MANIFEST = parse_manifest(
    {
        "project": "p",
        "interface": [
            {"name": "f", "signature": "(a, b=1)"},
            {"name": "C", "kind": "class", "module": "m", "signature": "(a, *rest, k=1)", "factories": {"make": ""}},
            {"name": "C.go", "module": "m", "signature": "(a)"},
        ],
    },
    "test",
)


def edited(source: str, **places: str) -> str:
    tree = ast.parse(source)
    edits = Edits(Source(source), module_head=places.get("head", ""), module_tail=places.get("tail", ""))
    for site in locate(tree, MANIFEST, "script").sites:
        edits.pieces += call_edits(site, "exe", edits.source)
    return apply(edits, tree, "script.py")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("f(1)", 'exe.run("f", a=1)'),
        ("f()", 'exe.run("f")'),
        ("f( # why\n  (1), # one\n  b=2,\n)", 'exe.run( # why\n  "f", a=(1), # one\n  b=2,\n)'),
        ("(f)((1), ((2)))", '(exe.run)("f", a=(1), b=((2)))'),
        ("f (*x, **y)", 'exe.run ("f", *x, **y)'),
        ("f(i for i in x)", 'exe.run("f", a=(i for i in x))'),
        ("f(x := 1, (y := 2))", 'exe.run("f", a=(x := 1), b=(y := 2))'),
        ("m = {'k': f}\nm [ 'k' ](1, b=2)", "m = {'k': f}\nexe.on(m [ 'k' ]).run(\"__call__\", 1, b=2)"),
        ("f(f(f(1)))", 'exe.run("f", a=exe.run("f", a=exe.run("f", a=1)))'),
        ("é = f('é', 'ü')  # ß", "é = exe.run(\"f\", a='é', b='ü')  # ß"),
        ("f(1,\\\n  2)", 'exe.run("f", a=1,\\\n  b=2)'),
        ("from m import C\nc = C(1)\nc.go(2)",
         'from m import C\nc = exe.create_interface_objects(interface_class_name="C", a=1)\nexe.run("go", a=2)'),
        ("from m import C\nc = C(1, 2, k=3)",
         'from m import C\nc = exe.create_interface_objects(1, 2, interface_class_name="C", k=3)'),
        ("from m import C\nc = C(*x, )",
         'from m import C\nc = exe.create_interface_objects(*x, interface_class_name="C", )'),
        ("from m import C\nC.make((1))",
         'from m import C\nexe.create_interface_objects((1), interface_class_name="C", interface_factory="make")'),
        ("from m import C\n(C(1)\n  # comment\n  .go(2))",
         'from m import C\n(exe.on(exe.create_interface_objects(interface_class_name="C", a=1))\n'
         '  # comment\n  .run("go", a=2))'),
    ],
)  # fmt: skip
def test_calls(source: str, expected: str) -> None:
    assert edited(source) == expected


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_head_and_tail(newline: str) -> None:
    source = newline.join(['"""Doc."""', "from __future__ import annotations", "x = 1"])
    expected = newline.join(['"""Doc."""', "from __future__ import annotations", "head", "x = 1", "tail", ""])
    assert edited(source, head="head\n", tail="tail\n") == expected
    assert edited(newline.join(["# comment", "@d", "def g(): ..."]), head="h\n").startswith(
        f"# comment{newline}h{newline}@d"
    )
    assert edited("", head="h\n") == "h\n" and edited("'doc'", head="h\n") == "'doc'\nh\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def g():\n    return 1", "def g():\n    new\n    return 1\nnew"),
        ("def g():\n    'doc'", "def g():\n    'doc'\n    new\nnew"),
        ("def g(): return 1", "def g(): new; return 1\nnew"),
        ("@d\nasync def g():\n\t@e\n\tdef h(): ...\n\treturn 1  # c",
         "@d\nasync def g():\n\tnew\n\t@e\n\tdef h(): ...\n\treturn 1  # c\nnew"),
    ],
)  # fmt: skip
def test_statements_in_functions_and_behind_them(source: str, expected: str) -> None:
    tree = ast.parse(source)
    edits = Edits(Source(source))
    edits.head(tree.body[0], "new")
    edits.after(tree.body[0], "new")
    assert apply(edits, tree, "script.py") == expected


def test_edits_inside_a_replaced_piece_go_with_it_and_overlapping_ones_are_refused() -> None:
    source = "x = f(1) + 2"
    tree = ast.parse(source)
    edits = Edits(Source(source), [(4, 12, "3"), (6, 7, "9")])
    assert apply(edits, tree, "script.py") == "x = 3"
    with pytest.raises(UserError, match="overlap"):
        apply(Edits(Source(source), [(0, 5, "y"), (4, 9, "z")]), tree, "script.py")
