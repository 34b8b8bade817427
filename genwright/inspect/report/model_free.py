"""The part of a script that needs no model: its functions, and how it makes what the interfaces are given."""

import ast
from dataclasses import dataclass

from genwright.inspect.analysis.analyse import Analysis
from genwright.inspect.analysis.behaviour import behaviours, propagate
from genwright.inspect.analysis.scopes import Scope, Scopes
from genwright.inspect.analysis.syntax import Function, arguments, passed

# What each variable of a scope is made by: the statements, each with the expression that it takes the value from.
Bindings = dict[tuple[Scope, str], list[tuple[ast.stmt, ast.AST]]]

_MOST_STATEMENTS = 8  # that are shown for one argument


@dataclass(frozen=True)
class PlainFunction:
    """A function of the script that reaches no model: what it takes and what it gives."""

    name: str
    line: int
    takes: str
    gives: str
    summary: str


@dataclass(frozen=True)
class Argument:
    """What an interface is given in one place, and the statements that made it, as line and text."""

    interface: str
    line: int
    parameter: str
    expression: str
    made_by: list[tuple[int, str]]


def plain_functions(analysis: Analysis) -> list[PlainFunction]:
    """The script's functions and methods from which nothing leads to a model."""
    flow = analysis.location.flow
    to_model = analysis.location.crossing
    judged = behaviours(analysis.tree)
    propagate([judged])
    found = []
    for node in (n for n in flow.nodes if isinstance(n, Function)):
        name = flow.scopes.opened_by[node].name
        behaviour = judged.get(name)
        if (behaviour is None or not behaviour.crosses) and node not in to_model:
            summary = (ast.get_docstring(node) or "").partition("\n")[0]
            found.append(PlainFunction(name, node.lineno, ast.unparse(node.args), _gives(node), summary))
    return sorted(found, key=lambda f: f.line)


def _gives(node: Function) -> str:
    if node.returns is not None:
        return ast.unparse(node.returns)
    returned = [n.value for n in ast.walk(node) if isinstance(n, ast.Return | ast.Yield) and n.value is not None]
    return ast.unparse(returned[-1]) if returned else ""


def handed_over(analysis: Analysis) -> list[Argument]:
    """Every argument of every interface call, with the statements of the script that it comes from."""
    bound, lines = _bindings(analysis), analysis.source.splitlines()
    found = []
    for site in analysis.location.sites:
        nodes = {ast.unparse(n): n for n in arguments(site.call)}
        for given in site.binding.arguments:
            node = nodes.get(f"{given.star}{given.value}") or nodes.get(given.value)
            made_by = _origins(node, bound, analysis.location.flow.scopes, lines) if node is not None else []
            name = given.parameter or given.star
            found.append(Argument(site.interface.name, site.call.lineno, name, given.value, made_by))
    return found


def _bindings(analysis: Analysis) -> Bindings:
    """The statements that bind each variable; a parameter is bound where its function is called."""
    flow = analysis.location.flow
    scopes = flow.scopes
    bound: Bindings = {}
    for node in flow.nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            home, statement = scopes.of_node[node].home(node.id), scopes.statement(node)
            if home is not None:
                bound.setdefault((home, node.id), []).append((statement, _source_of(statement)))
        elif isinstance(node, Function):
            for call in flow.callers(node):
                for name, value in passed(call, node, isinstance(scopes.parent[node], ast.ClassDef)):
                    where = bound.setdefault((scopes.opened_by[node], name), [])
                    where.append((scopes.statement(call), value))
    return bound


def _origins(value: ast.expr, bound: Bindings, scopes: Scopes, lines: list[str]) -> list[tuple[int, str]]:
    """The statements that a value is computed by, in the order of their lines; the nearest are found first."""
    found: dict[int, str] = {}
    pending: list[ast.AST] = [value]
    walked: set[ast.AST] = set()
    for node in pending:  # grows while it is walked
        if node in walked or len(found) >= _MOST_STATEMENTS:
            continue
        walked.add(node)
        for name in (n for n in ast.walk(node) if isinstance(n, ast.Name) and n in scopes.of_node):
            home = scopes.of_node[name].home(name.id)
            for statement, source in bound.get((home, name.id), [])[:_MOST_STATEMENTS] if home else ():
                if statement.lineno in found or len(found) < _MOST_STATEMENTS:
                    found[statement.lineno] = lines[statement.lineno - 1].strip()
                    pending.append(source)
    return sorted(found.items())


def _source_of(statement: ast.stmt) -> ast.AST:
    """What a statement computes its variables from."""
    if isinstance(statement, ast.For | ast.AsyncFor):
        return statement.iter
    if isinstance(statement, ast.With | ast.AsyncWith):
        return ast.Tuple([i.context_expr for i in statement.items])
    return getattr(statement, "value", None) or ast.Pass()
