"""Put a scenario's resources, and samples for placeholders that a script opens, in the place of its text literals."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from genwright.errors import UserError
from genwright.inspect.analysis.analyse import Analysis
from genwright.inspect.analysis.resources import NO_EXPRESSIONS, Resource
from genwright.inspect.analysis.scenario import Scenario
from genwright.inspect.rewrite.edits import Edits, apply

# fmt: off
_PLAIN_PARENTS = (
    ast.Assign, ast.AnnAssign, ast.keyword, ast.Call, ast.List, ast.Tuple, ast.Dict, ast.Return, ast.FunctionDef,
    ast.AsyncFunctionDef,
)
# fmt: on


@dataclass(frozen=True)
class Substitution:
    """A script's source with other paths, and the placeholders that samples replaced.

    `name` is the script's name for the folder of samples; "" where no sample is used.
    """

    text: str
    resources: list[Resource]
    name: str


def substitute(analysis: Analysis, scenario: Scenario, samples: bool = True) -> Substitution:
    """Replace the scenario's `[resources]` and, with `samples`, placeholders; nothing else changes, which is proved."""
    scopes = analysis.location.flow.scopes
    given = dict(scenario.resources)
    name = "RESOURCES_PATH" if not analysis.uses("RESOURCES_PATH") else "INSPECTION_RESOURCES_PATH"
    replaced: dict[ast.Constant, str] = {}
    for node, parent in scopes.parent.items() if given else ():
        literal = isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in given
        if literal and isinstance(node, ast.Constant) and not isinstance(parent, NO_EXPRESSIONS):
            replaced[node] = repr(given[str(node.value)])
    unused = sorted(set(given) - {str(n.value) for n in replaced})
    if unused:
        raise UserError(f"[resources] {unused[0]!r} is no text literal of {analysis.script.name}.")
    chosen = [r for r in analysis.resources if samples and r.node not in replaced]
    replaced |= {r.node: f"{name} + {r.sample!r}" for r in chosen}
    if not replaced:
        return Substitution(analysis.source, [], "")
    edits = Edits(analysis.text)
    for node, text in replaced.items():
        plain = isinstance(scopes.parent[node], _PLAIN_PARENTS)
        edits.replace(node, text if plain else f"({text})")
    text = apply(edits, analysis.tree, analysis.script.name)
    prove_substitution(analysis, text, replaced)
    return Substitution(text, chosen, name if chosen else "")


def prove_substitution(analysis: Analysis, text: str, replaced: dict[ast.Constant, str]) -> None:
    """Raise `UserError` unless `text` is the script with exactly these literals replaced, each by its expression."""
    expected = {node: ast.dump(ast.parse(new, mode="eval").body) for node, new in replaced.items()}
    met: list[ast.AST] = []
    same = True
    for before, after in _pairs(analysis.tree, ast.parse(text), replaced):
        if before in expected:
            met.append(before)
            same &= after is not None and ast.dump(after) == expected[before]
        else:
            same &= after is not None and _own(before) == _own(after)
    if not same or len(met) != len(replaced):
        raise UserError(
            f"{analysis.script.name}: putting samples in differs from the script in more than its placeholders; "
            "nothing is written."
        )


def _pairs(before: ast.AST, after: ast.AST, ends: dict[ast.Constant, str]) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """The nodes of two trees side by side; what stands below a replaced literal is not walked."""
    pending: list[tuple[ast.AST, ast.AST | None]] = [(before, after)]
    while pending:
        one, other = pending.pop()
        yield one, other
        if one in ends or other is None:
            continue
        theirs = list(ast.iter_child_nodes(other))
        ours = list(ast.iter_child_nodes(one))
        if len(ours) != len(theirs):
            yield one, None
        pending += zip(ours, theirs, strict=False)


def _own(node: ast.AST) -> tuple[str, str]:
    """What a node says itself, apart from its children."""
    plain = {k: v for k, v in ast.iter_fields(node) if not isinstance(v, ast.AST) and not _holds_nodes(v)}
    return type(node).__name__, repr(plain)


def _holds_nodes(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(v, ast.AST) for v in value)
