"""A value is compared with the interfaces of its name only."""

import ast

import pytest
from call_count import calls

from genwright.inspect.analysis.abstract_values import Ref
from genwright.inspect.analysis.manifest import Manifest, parse_manifest
from genwright.inspect.analysis.match import Matcher

ENTRIES = [
    {"name": "generate", "module": "a.model", "signature": "(x)"},
    {"name": "generate", "module": "b.model", "signature": "(x)"},
    {"name": "Net", "kind": "class", "module": "a.net", "factories": {"load": "(path)", "c.zoo.make_net": "()"}},
    {"name": "Net.predict", "module": "a.net", "signature": "(x)", "on_class": True},
]


def manifest(entries: list[dict[str, object]]) -> Manifest:
    """Two interfaces of one name, which no manifest's file may have but a drafted pool does."""
    parts = [parse_manifest({"project": "p", "interface": [e]}, "test").interfaces for e in entries]
    return Manifest("p", tuple(i for part in parts for i in part))


@pytest.mark.parametrize(
    ("dotted", "expected"),
    [
        ("a.model.generate", ("generate", "a.model", "")),
        ("b.model.generate", ("generate", "b.model", "")),
        ("b.other.generate", None),
        ("a.Net", ("Net", "a.net", "")),
        ("a.net.Net.load", ("Net", "a.net", "load")),
        ("a.net.load", ("Net", "a.net", "load")),
        ("c.zoo.make_net", ("Net", "a.net", "c.zoo.make_net")),
        ("a.net.Net.predict", ("Net.predict", "a.net", "")),
        ("predict", None),
    ],
)
def test_references(dotted: str, expected: tuple[str, str, str] | None) -> None:
    found = Matcher(ast.parse(""), manifest(ENTRIES), "script", "", frozenset()).match(Ref(dotted))
    assert (found and (found[0].name, found[0].module, found[1])) == expected


def test_many_interfaces_cost_no_more_for_each_call() -> None:
    def work(count: int) -> int:
        entries: list[dict[str, object]] = [
            {"name": f"f{i}", "module": "pack", "signature": "(x)"} for i in range(count)
        ]
        matcher = Matcher(ast.parse(""), manifest(entries), "script", "", frozenset())
        return calls(lambda: [matcher.match(Ref(f"pack.f{i}")) for i in range(count)])

    assert work(200) < 15 * work(20)
