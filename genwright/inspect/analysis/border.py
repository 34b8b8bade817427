"""Where a script crosses to its model: the code that it calls, judged by what that code does and how it is used."""

import ast
from dataclasses import dataclass, replace
from pathlib import Path

from genwright.errors import UserError
from genwright.inspect.analysis.behaviour import CALLS, Behaviour, behaviours, calls_network, propagate
from genwright.inspect.analysis.definitions import Definition, define, inherited
from genwright.inspect.analysis.locate import locate, parse
from genwright.inspect.analysis.made_models import made_models
from genwright.inspect.analysis.manifest import Interface, Manifest
from genwright.inspect.analysis.reachable import reachable
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.sites import Location, Site
from genwright.inspect.analysis.syntax import Function, walk

_LEAST = 4.0  # of a candidate's score
_SHARE = 0.65  # of the best candidate's score
_NEAREST = 3


@dataclass(frozen=True)
class Crossing:
    """One candidate that a script calls, with its calls, its score and the reasons for it."""

    interface: Interface
    behaviour: Behaviour
    sites: tuple[Site, ...]
    score: float
    reasons: tuple[str, ...]
    own: bool  # the script itself defines it


def draft_for_script(repository: Repository, script: Path, source: str) -> Manifest:
    """A manifest for one script: what it calls of its own and its repository's code that leads to the model."""
    manifest, location = _draft(repository, script, parse(source, script.name))
    repository.located = (source, location)
    return manifest


def _draft(
    repository: Repository, script: Path, tree: ast.Module, earlier: Location | None = None
) -> tuple[Manifest, Location]:
    pool, location, found = _candidates(repository, script, tree, earlier)
    chosen = _at_border(location, _best(found))
    if not chosen:
        near = _nearest(found) if found else _unresolved(location)
        raise UserError(f"No call in {script.name} looks like one of a model; {near}; pass a manifest.")
    names = {(c.interface.module, c.interface.name) for c in chosen}
    owners = {(c.interface.module, c.interface.owner) for c in chosen if c.interface.kind == "method"}
    kept: dict[str, Interface] = {}  # a manifest's names are unique: the script's own yields
    for i in sorted(pool, key=lambda i: i.module == repository.module(script)):
        if (i.module, i.name) in names or (i.kind == "class" and (i.module, i.name) in owners):
            kept.setdefault(i.name, i)
    return Manifest(project_name(repository), tuple(i for i in pool if kept.get(i.name) is i)), location


def crossings(repository: Repository, script: Path, source: str) -> list[Crossing]:
    """Every candidate that a script calls, whether it is taken for an interface or not, best first."""
    return _candidates(repository, script, parse(source, script.name))[2]


def _candidates(
    repository: Repository, script: Path, tree: ast.Module, earlier: Location | None = None
) -> tuple[list[Interface], Location, list[Crossing]]:
    """What a script may mean, where it calls that, and the candidates, best first."""
    name, module, package = project_name(repository), repository.module(script), repository.package(script)
    functions, known = _pool(repository, script, tree)
    texts = earlier.flow.texts if earlier else frozenset()
    first = locate(tree, Manifest(name, tuple(functions)), module, package, texts, earlier)
    for by_name in (False, True):
        pool, location = functions, first
        if made := made_models(first, by_name):
            pool = _joined(functions, made, known)
            location = locate(tree, Manifest(name, tuple(pool)), module, package, texts, first)
        found = _judged(location, known, module)
        if any(c.behaviour.crosses for c in _at_border(location, _best(found))):
            break
    return pool, location, found


def no_sites(repository: Repository, script: Path, manifest: Manifest, location: Location) -> UserError:
    """The sentence for a script that calls none of a manifest's interfaces: what comes nearest, and why it is none."""
    near = _unresolved(location)
    if not location.unresolved:
        try:
            drafted, _ = _draft(repository, script, location.flow.tree, location)
            names = ", ".join(i.name for i in drafted.interfaces[:_NEAREST])
            near = f"nearest are {names}, which the manifest does not list"
        except UserError as error:
            near = str(error).rstrip(".")
    return UserError(f"{script.name} calls no interface of {manifest.project}; {near}.")


def _unresolved(location: Location) -> str:
    told = [f"{u.text} in line {u.line} ({u.reason})" for u in location.unresolved[:_NEAREST]]
    return f"nearest are {'; '.join(told)}" if told else "it calls nothing that its repository defines"


def _nearest(found: list[Crossing]) -> str:
    """The best candidates and what speaks for them, as the rest of a sentence."""
    told = [f"{c.interface.name} ({', '.join(c.reasons) or 'nothing speaks for it'})" for c in found[:_NEAREST]]
    return f"nearest are {'; '.join(told)}"


def project_name(repository: Repository) -> str:
    name = "".join(c if c.isalnum() or c in "_.- " else "_" for c in repository.root.name)
    return name or "project"


def _pool(
    repository: Repository, script: Path, tree: ast.Module
) -> tuple[list[Interface], dict[tuple[str, str], Behaviour]]:
    """Everything public that the script may mean, by name, and what each does."""
    definitions: list[Definition] = []
    known: dict[str, dict[str, Behaviour]] = {}
    for file in reachable(repository, script, tree):
        inner = tree if file == script.resolve() else repository.parse(file)
        if inner is not None:
            module = repository.module(file)
            definitions += define(inner, module)
            known[module] = behaviours(inner)
    propagate(known.values())
    does = {(m, name): behaviour for m, file in known.items() for name, behaviour in file.items()}
    by_name = {name: behaviour for (_, name), behaviour in does.items()}
    for definition in inherited(definitions):
        definitions.append(definition)
        member = definition.name.rpartition(".")[2]
        behaviour = by_name.get(f"{definition.home}.{member}")
        if behaviour is not None:
            does[definition.module, definition.name] = behaviour
    used = {n.name for n in tree.body if isinstance(n, ast.ClassDef)}
    for node in walk(tree):
        if isinstance(node, ast.Name):
            used.add(node.id)
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.ImportFrom):
            used.update(a.name for a in node.names)
    definitions = _with_factories(_with_inherited_factories(definitions, tree))
    factories = {d.name: {key.rpartition(".") for key in d.factories} for d in definitions if d.kind == "class"}
    classes = {name for name, keys in factories.items() if name in used or {key[2] for key in keys} & used}
    makers = {(key[0] or d.module, key[2]) for d in definitions if d.name in classes for key in factories[d.name]}
    pool: dict[tuple[str, str], Interface] = {}
    for d in definitions:
        member = d.name.rpartition(".")[2]
        meant = d.owner in classes if d.kind != "function" else member in used and (d.module, d.name) not in makers
        if meant and (d.kind != "method" or member in used or member == "__call__"):
            pool.setdefault((d.module, d.name), Interface.of(d))
    return list(pool.values()), does


def _joined(pool: list[Interface], made: list[Interface], known: dict[tuple[str, str], Behaviour]) -> list[Interface]:
    """The pool with models of unknown class; a factory that stands for a class is no function any more."""
    taken = {i.owner for i in pool if i.kind != "function"}
    made = [i for i in made if i.owner not in taken]
    for interface in made:
        does = {CALLS} if interface.kind == "method" else set()
        known[interface.module, interface.name] = Behaviour(own=does, by_use=True)
    makers = [f"{i.module}.{i.name}" for i in made if i.kind == "class"]
    return [i for i in pool if i.kind != "function" or not any(map(i.named_by, makers))] + made


def _with_inherited_factories(definitions: list[Definition], tree: ast.Module) -> list[Definition]:
    """The definitions; `Net.from_pretrained(...)` makes a Net also where it comes from a library's base class."""
    methods = {d.name for d in definitions if d.kind == "method"}
    used: dict[str, set[str]] = {}
    for node in walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.startswith("from_"):
            used.setdefault(ast.unparse(node.func.value).rpartition(".")[2], set()).add(node.func.attr)
    found: list[Definition] = []
    for d in definitions:
        new = (
            {n for n in used.get(d.name, ()) if f"{d.name}.{n}" not in methods} if d.kind == "class" and d.bases else ()
        )
        found.append(replace(d, factories=dict.fromkeys(new) | d.factories) if new else d)
    return found


def _with_factories(definitions: list[Definition]) -> list[Definition]:
    """The definitions, each class with the functions of other modules that make its objects."""
    makers: dict[str, list[Definition]] = {}
    for d in definitions:
        for name in d.makes:
            makers.setdefault(name, []).append(d)
    found: list[Definition] = []
    for d in definitions:
        others = {f"{m.module}.{m.name}": m.signature for m in makers.get(d.name, []) if m.module != d.module}
        found.append(replace(d, factories=d.factories | others) if others and d.kind == "class" else d)
    return found


def _judged(location: Location, known: dict[tuple[str, str], Behaviour], module: str) -> list[Crossing]:
    """The candidates that the script calls, best first."""
    found: list[Crossing] = []
    calls: dict[tuple[str, str], list[Site]] = {}
    for site in location.sites:
        calls.setdefault((site.interface.module, site.interface.name), []).append(site)
    for sites in calls.values():
        interface = sites[0].interface
        behaviour = known.get((interface.module, interface.name)) or Behaviour()
        if interface.kind == "class":
            behaviour = _of_class(interface, known)
        own = interface.module == module
        points = [(3.0, "another module defines it")] if not own else []
        points += behaviour.judge()
        if any(s.call.args or s.call.keywords for s in sites):
            points.append((1.0, "it is given inputs"))
        if any(not isinstance(location.flow.scopes.parent[s.call], ast.Expr) for s in sites):
            points.append((1.0, "its result is used"))
        score = sum(p for p, _ in points)
        found.append(Crossing(interface, behaviour, tuple(sites), score, tuple(r for _, r in points), own))
    return sorted(found, key=lambda c: (-c.score, c.interface.module, c.interface.name))


def _of_class(interface: Interface, known: dict[tuple[str, str], Behaviour]) -> Behaviour:
    """What constructing does: its constructor's deeds, and those of all methods as its class's."""
    start = known.get((interface.module, f"{interface.name}.__init__"))
    if start is not None:
        return start
    methods = [b for (m, n), b in known.items() if m == interface.module and n.startswith(f"{interface.name}.")]
    return Behaviour(owned=set().union(*(b.own for b in methods)) if methods else set())


def _best(found: list[Crossing]) -> list[Crossing]:
    """The candidates near the best; where any leads to a model, only those that do; constructions only alone."""
    calls = [c for c in found if c.interface.kind != "class"]
    own = [c for c in calls if c.own and c.behaviour.crosses]
    border = [c for c in calls if not c.own]
    likely = [c for c in border if c.interface.kind == "method" and any(calls_network(s.call) for s in c.sites)]
    border = [c for c in border if c.behaviour.crosses] or likely or ([] if own else border)
    best = [_near(border), _near(own)]
    return [c for group in best for c in group] or _near([c for c in found if c.interface.kind == "class"])


def _near(group: list[Crossing]) -> list[Crossing]:
    group = [c for c in group if any(s.call.args or s.call.keywords for s in c.sites)] or group
    best = max((c.score for c in group), default=0.0)
    return [c for c in group if c.score >= max(_LEAST, best * _SHARE)]


def _at_border(location: Location, chosen: list[Crossing]) -> list[Crossing]:
    """The candidates without those that another one calls, or that call another one.

    The outer one stays if it is the script's own function and gives back a result, and either its author marked it as
    inference, or everything inside it is a library's or the script's own without such a mark. Else the inner one stays.
    """
    scopes = location.flow.scopes
    bodies = _bodies(location, {c.interface.name for c in chosen if c.own})

    def inside(inner: Crossing, outer: Crossing) -> list[bool]:
        if not outer.own or inner.interface is outer.interface:
            return [False]
        around = bodies.get(outer.interface.name, [])
        return [any(scopes.inside(s.call, b) for b in around) for s in inner.sites]

    def stays(outer: Crossing) -> bool:
        inner = [c for c in chosen if any(inside(c, outer)) and not any(inside(outer, c))]
        marked = outer.behaviour.without_gradients or all(
            c.behaviour.by_use or (c.own and not c.behaviour.without_gradients) for c in inner
        )
        return not inner or (marked and outer.behaviour.returns)

    staying = [c for c in chosen if stays(c)]
    return [c for c in staying if not any(all(inside(c, o)) and not any(inside(o, c)) for o in staying)]


def _bodies(location: Location, names: set[str]) -> dict[str, list[ast.AST]]:
    """The script's own functions and methods, each with all that it calls in turn."""
    nodes: dict[str, ast.AST] = {i.name: node for i, node in location.defined if not isinstance(node, ast.ClassDef)}
    for interface, node in location.defined:
        if isinstance(node, ast.ClassDef):
            nodes |= {f"{interface.name}.{m.name}": m for m in node.body if isinstance(m, Function)}
    return {name: _called_by(location, node) for name, node in nodes.items() if name in names}


def _called_by(location: Location, node: ast.AST) -> list[ast.AST]:
    """A definition, and the script's functions that it calls in turn."""
    found = [node]
    for body in found:  # grows while it is walked
        for inner in ast.walk(body):
            if isinstance(inner, ast.Call) and inner in location.flow.scopes.of_node:
                found += [n for n in location.flow.definitions(inner.func) if n not in found]
    return found
