"""The proof of a rewrite: taken back apart, it must be the original, call for call and expression for expression."""

import ast
import inspect
import warnings
from dataclasses import dataclass
from typing import Any

from genwright.errors import UserError
from genwright.inspect.analysis.analyse import Analysis
from genwright.inspect.analysis.bind import Signature, may_name
from genwright.inspect.analysis.sites import Site

_OLDEST = (3, 10)


@dataclass(frozen=True)
class Header:
    """What the rewrite added around the script: the executor's name, the statements in front and at the end."""

    exe: str
    head: str
    tail: str


def verify(analysis: Analysis, text: str, sites: list[Site], header: Header) -> None:
    """Raise `UserError` unless the rewrite compiles, has every site once, and is otherwise the original."""
    name = analysis.script.name
    routed = _Routed(header.exe)
    restored = ast.dump(routed.visit(_without(_compiled(text, name, analysis.source), header, name)))
    if len(routed.calls) != len(sites):
        raise UserError(f"{name}: the rewrite has {len(routed.calls)} routed calls where {len(sites)} were located.")
    canonical = _Canonical(analysis, sites)
    if restored != ast.dump(canonical.visit(ast.parse(analysis.source))):
        raise UserError(
            f"{name}: the rewrite differs from the script in more than its routed calls; nothing is written."
        )
    for (site, original), call in zip(canonical.calls, routed.calls, strict=True):
        before, after = _bound(site.signature, original), _bound(site.signature, call)
        if before is not None and after is not None and before != after:
            raise UserError(f"{name}: line {site.call.lineno} would pass other arguments to {site.interface.name}.")


def _compiled(text: str, name: str, source: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text, name, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise UserError(f"{name}: the rewrite would not compile ({error}); nothing is written.") from error
        try:
            return ast.parse(text, feature_version=_OLDEST)
        except SyntaxError as error:
            if _is_old(source):
                raise UserError(f"{name}: the rewrite needs a newer Python than the script ({error}).") from error
            return ast.parse(text)


def _is_old(source: str) -> bool:
    try:
        return bool(ast.parse(source, feature_version=_OLDEST))
    except SyntaxError:
        return False


def _without(tree: ast.Module, header: Header, name: str) -> ast.Module:
    """The rewrite's statements without those of the header and the entry."""
    head, tail = ast.parse(header.head).body, ast.parse(header.tail).body
    body = tree.body
    end = len(body) - len(tail)
    shown, wanted = [ast.dump(n) for n in body], [ast.dump(n) for n in head]
    # In front of it stand at most the docstring and imports from __future__, with what shares their lines.
    start = next((i for i in range(end) if shown[i : i + len(head)] == wanted), None)
    if start is None or shown[end:] != [ast.dump(n) for n in tail]:
        raise UserError(f"{name}: the rewrite's header is not where it belongs; nothing is written.")
    tree.body = [*body[:start], *body[start + len(head) : end]]
    return tree


def _mark(site_key: str, receiver: ast.expr | None, arguments: list[ast.expr], keywords: list[ast.keyword]) -> ast.Call:
    """The form in which a site of the original and a routed call of the rewrite must agree."""
    shown = [ast.Constant(site_key), *([receiver] if receiver is not None else []), *arguments]
    return ast.Call(ast.Name("routed", ast.Load()), shown, keywords)


class _Routed(ast.NodeTransformer):
    """Finds the rewrite's routed calls by themselves, and takes registrations out."""

    def __init__(self, exe: str) -> None:
        self.exe = exe
        self._found: list[tuple[tuple[int, int], ast.Call]] = []

    @property
    def calls(self) -> list[ast.Call]:
        """The routed calls as the interface would see them, in the order of the text."""
        return [call for _, call in sorted(self._found, key=lambda found: found[0])]

    def _is_exe(self, node: ast.expr, name: str) -> bool:
        return (
            isinstance(node, ast.Attribute)
            and node.attr == name
            and isinstance(node.value, ast.Name)
            and node.value.id == self.exe
        )

    def visit_Expr(self, node: ast.Expr) -> Any:
        if isinstance(node.value, ast.Call) and self._is_exe(node.value.func, "register"):
            return None
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        where = (node.end_lineno or 0, node.end_col_offset or 0)
        self.generic_visit(node)
        receiver: ast.expr | None = None
        function = node.func
        on = isinstance(function, ast.Attribute) and function.attr == "run" and isinstance(function.value, ast.Call)
        if on and isinstance(function, ast.Attribute) and isinstance(function.value, ast.Call):
            if not self._is_exe(function.value.func, "on"):
                return node
            (receiver,) = function.value.args
        elif self._is_exe(function, "create_interface_objects"):
            words = {k.arg: k.value for k in node.keywords if k.arg in ("interface_class_name", "interface_factory")}
            key = "+".join(str(w.value) for w in words.values() if isinstance(w, ast.Constant))
            keywords = [k for k in node.keywords if k.value not in words.values()]
            return self._seen(where, key, None, node.args, keywords)
        elif not self._is_exe(function, "run"):
            return node
        name, *arguments = node.args
        return self._seen(where, str(getattr(name, "value", "")), receiver, arguments, node.keywords)

    def _seen(
        self,
        where: tuple[int, int],
        key: str,
        receiver: ast.expr | None,
        arguments: list[ast.expr],
        keywords: list[ast.keyword],
    ) -> ast.Call:
        self._found.append((where, ast.Call(ast.Name("routed", ast.Load()), arguments, keywords)))
        return _mark(key, receiver, arguments, keywords)


class _Canonical(ast.NodeTransformer):
    """The original with its sites in the form that the rewrite must have."""

    def __init__(self, analysis: Analysis, sites: list[Site]) -> None:
        self._sites = {analysis.text.span(s.call): s for s in sites}
        self._span = analysis.text.span
        self._found: list[tuple[tuple[int, int], Site, ast.Call]] = []

    @property
    def calls(self) -> list[tuple[Site, ast.Call]]:
        """The sites with their arguments as they were written, in the order of the text."""
        return [(site, call) for _, site, call in sorted(self._found, key=lambda found: found[0])]

    def visit_Call(self, node: ast.Call) -> Any:
        site = self._sites.get(self._span(node))
        self.generic_visit(node)
        if site is None:
            return node
        where = (node.end_lineno or 0, node.end_col_offset or 0)
        self._found.append((where, site, ast.Call(ast.Name("routed", ast.Load()), node.args, node.keywords)))
        names = may_name(site.signature, site.call, site.binding)
        arguments = [a for a, n in zip(node.args, names, strict=True) if n is None]
        named = [ast.keyword(n, a) for a, n in zip(node.args, names, strict=True) if n is not None]
        if site.kind == "construction":
            key = "+".join(t for t in (site.interface.name, site.factory) if t)
            return _mark(key, None, arguments, [*named, *node.keywords])
        receiver = None
        if site.on_object:
            by_attribute = isinstance(node.func, ast.Attribute) and site.interface.member != "__call__"
            receiver = node.func.value if by_attribute and isinstance(node.func, ast.Attribute) else node.func
        return _mark(site.word, receiver, arguments, [*named, *node.keywords])


def _bound(signature: Signature | None, call: ast.Call) -> dict[str, Any] | None:
    """Which parameter gets which expression, as Python's own binder says; None where stars leave it open."""
    if signature is None or any(isinstance(a, ast.Starred) for a in call.args):
        return None
    if any(k.arg is None for k in call.keywords):
        return None
    empty = inspect.Parameter.empty
    parameters = [
        inspect.Parameter(p.name, p.kind, default=empty if p.default is None else p.default)
        for p in signature.parameters
    ]
    try:
        keywords = {k.arg: ast.dump(k.value) for k in call.keywords if k.arg}
        return dict(inspect.Signature(parameters).bind(*map(ast.dump, call.args), **keywords).arguments)
    except (TypeError, ValueError):
        return None
