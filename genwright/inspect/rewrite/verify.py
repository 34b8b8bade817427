"""The proof of a rewrite: taken back apart, it must be the original, call for call and expression for expression."""

import ast
import warnings
from dataclasses import dataclass
from typing import Any

from genwright.errors import UserError
from genwright.inspect.analysis.analyse import Analysis
from genwright.inspect.analysis.bind import Signature, may_name
from genwright.inspect.analysis.sites import Site

_OLDEST = (3, 10)
# Characters of a script that is compiled; a longer one is only parsed, since compiling is quadratic in functions.
_COMPILED = 200_000


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
    restored = routed.text(_without(_compiled(text, name, analysis.source), header, name))
    if len(routed.calls) != len(sites):
        raise UserError(f"{name}: the rewrite has {len(routed.calls)} routed calls where {len(sites)} were located.")
    canonical = _Canonical(sites)
    if restored != canonical.text(analysis.tree):
        raise UserError(
            f"{name}: the rewrite differs from the script in more than its routed calls; nothing is written."
        )
    for (site, original), (_, call) in zip(canonical.calls, routed.calls, strict=True):
        assert site is not None
        before, after = _bound(site.signature, original), _bound(site.signature, call)
        if before is not None and after is not None and before != after:
            raise UserError(f"{name}: line {site.call.lineno} would pass other arguments to {site.interface.name}.")


def _compiled(text: str, name: str, source: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if len(text) <= _COMPILED:
                compile(text, name, "exec", dont_inherit=True)
            try:
                return ast.parse(text, feature_version=_OLDEST)
            except SyntaxError as error:
                if _is_old(source):
                    raise UserError(f"{name}: the rewrite needs a newer Python than the script ({error}).") from error
                return ast.parse(text)
        except (SyntaxError, ValueError) as error:
            raise UserError(f"{name}: the rewrite would not compile ({error}); nothing is written.") from error


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
    wanted = [ast.dump(n) for n in head]
    # In front of it stand at most the docstring and imports from __future__, with what shares their lines.
    starts = range(end - len(head) + 1)
    start = next((i for i in starts if all(ast.dump(body[i + k]) == w for k, w in enumerate(wanted))), None)
    if start is None or [ast.dump(n) for n in body[end:]] != [ast.dump(n) for n in tail]:
        raise UserError(f"{name}: the rewrite's header is not where it belongs; nothing is written.")
    tree.body = [*body[:start], *body[start + len(head) : end]]
    return tree


@dataclass(frozen=True)
class _Call:
    """A call's arguments, each as the text of its syntax tree."""

    arguments: list[str]
    keywords: list[tuple[str | None, str]]
    has_stars: bool


class _Shown:
    """A syntax tree as text; `calls` are the routed ones, in the order of their ends."""

    def __init__(self) -> None:
        self._found: list[tuple[tuple[int, int], Site | None, _Call]] = []

    @property
    def calls(self) -> list[tuple[Site | None, _Call]]:
        return [(site, call) for _, site, call in sorted(self._found, key=lambda found: found[0])]

    def text(self, node: Any) -> str:
        if isinstance(node, ast.Name):
            return f"Name(id={node.id!r})"
        if isinstance(node, list):
            return f"[{', '.join(filter(None, map(self.text, node)))}]" if node else "[]"
        if not isinstance(node, ast.AST):
            return repr(node)
        if isinstance(node, ast.Call):
            return self.call(node)
        return self._plain(node)

    def _plain(self, node: ast.AST) -> str:
        # A name's context follows from its place.
        fields = [(key, getattr(node, key, None)) for key in node._fields if key != "ctx"]
        parts = [f"{key}={self.text(value)}" for key, value in fields if value is not None]
        return f"{type(node).__name__}({', '.join(parts)})"

    def call(self, node: ast.Call) -> str:
        return self._plain(node)

    def _arguments(self, arguments: list[ast.expr], keywords: list[ast.keyword]) -> _Call:
        stars = any(isinstance(a, ast.Starred) for a in arguments) or any(k.arg is None for k in keywords)
        return _Call([self.text(a) for a in arguments], [(k.arg, self.text(k.value)) for k in keywords], stars)

    def _seen(self, node: ast.Call, site: Site | None, call: _Call) -> None:
        self._found.append(((node.end_lineno or 0, node.end_col_offset or 0), site, call))


def _mark(key: str, receiver: str, arguments: list[str], keywords: list[tuple[str | None, str]]) -> str:
    """The form in which a site of the original and a routed call of the rewrite must agree."""
    named = ", ".join(f"{name}={value}" for name, value in keywords)
    return f"routed({key!r}, {receiver}, [{', '.join(arguments)}], [{named}])"


class _Routed(_Shown):
    """Finds the rewrite's routed calls by themselves, and takes registrations out."""

    def __init__(self, exe: str) -> None:
        super().__init__()
        self.exe = exe

    def _is_exe(self, node: ast.expr, name: str) -> bool:
        return (
            isinstance(node, ast.Attribute)
            and node.attr == name
            and isinstance(node.value, ast.Name)
            and node.value.id == self.exe
        )

    def text(self, node: Any) -> str:
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and self._is_exe(node.value.func, "register")
        ):
            return ""
        return super().text(node)

    def call(self, node: ast.Call) -> str:
        receiver = ""
        function = node.func
        on = isinstance(function, ast.Attribute) and function.attr == "run" and isinstance(function.value, ast.Call)
        if on and isinstance(function, ast.Attribute) and isinstance(function.value, ast.Call):
            if not self._is_exe(function.value.func, "on"):
                return self._plain(node)
            receiver = self.text(function.value.args[0])
        elif self._is_exe(function, "create_interface_objects"):
            words = {k.arg: k.value for k in node.keywords if k.arg in ("interface_class_name", "interface_factory")}
            key = "+".join(str(w.value) for w in words.values() if isinstance(w, ast.Constant))
            made = self._arguments(node.args, [k for k in node.keywords if k.value not in words.values()])
            self._seen(node, None, made)
            return _mark(key, "", made.arguments, made.keywords)
        elif not self._is_exe(function, "run"):
            return self._plain(node)
        name, *arguments = node.args
        call = self._arguments(arguments, node.keywords)
        self._seen(node, None, call)
        return _mark(str(getattr(name, "value", "")), receiver, call.arguments, call.keywords)


class _Canonical(_Shown):
    """The original with its sites in the form that the rewrite must have."""

    def __init__(self, sites: list[Site]) -> None:
        super().__init__()
        self._sites = {s.call: s for s in sites}

    def call(self, node: ast.Call) -> str:
        site = self._sites.get(node)
        if site is None:
            return self._plain(node)
        receiver = self.text(site.held) if site.on_object else ""
        call = self._arguments(node.args, node.keywords)
        self._seen(node, site, call)
        given = list(zip(call.arguments, may_name(site.signature, site.call, site.binding), strict=True))
        named: list[tuple[str | None, str]] = [(n, a) for a, n in given if n is not None]
        key = (
            "+".join(t for t in (site.interface.name, site.factory) if t)
            if site.kind == "construction"
            else site.run_name
        )
        return _mark(key, receiver, [a for a, n in given if n is None], [*named, *call.keywords])


def _bound(signature: Signature | None, call: _Call) -> dict[str, Any] | None:
    """Which parameter gets which expression, as Python's own binder says; None where stars leave it open."""
    if signature is None or call.has_stars:
        return None
    try:
        keywords = {name: value for name, value in call.keywords if name}
        return dict(signature.python.bind(*call.arguments, **keywords).arguments)
    except (TypeError, ValueError):
        return None
