"""The edits that route a call through the executor: another callee, the interface's name, names for its arguments."""

import ast

from genwright.inspect.analysis.bind import may_name
from genwright.inspect.analysis.sites import Site
from genwright.inspect.rewrite.edits import Piece, Source


def call_edits(site: Site, exe: str, source: Source) -> list[Piece]:
    """The pieces of text that change; comments, line breaks and the arguments' own text stay."""
    return [*_callee(site, exe, source), *_arguments(site, source)]


def _callee(site: Site, exe: str, source: Source) -> list[Piece]:
    function = site.call.func
    start, end = source.span(function)
    method = "create_interface_objects" if site.kind == "construction" else "run"
    called = site.indirect or (site.interface.member == "__call__" and site.kind == "method")
    if not isinstance(function, ast.Attribute) or called:
        if site.on_object:
            return [(start, start, f"{exe}.on("), (end, end, f").{method}")]
        return [(start, end, f"{exe}.{method}")]
    # Line breaks and comments around the dot stay.
    name = (end - len(function.attr), end, method)
    first, last = source.span(function.value)
    if site.on_object:
        return [(first, first, f"{exe}.on("), (last, last, ")"), name]
    return [(first, last, exe), name]


def _arguments(site: Site, source: Source) -> list[Piece]:
    call = site.call
    names = dict(zip(call.args, may_name(site.signature, call, site.binding), strict=True))
    opening, closing = source.opening(call), source.end(call) - 1
    given = sorted([*call.args, *call.keywords], key=source.start)
    words = f'"{site.run_name}"'
    keyword = site.kind == "construction"
    if keyword:
        factory = f', interface_factory="{site.factory}"' if site.factory else ""
        words = f'interface_class_name="{site.interface.name}"{factory}'
    if not given:
        return [(opening + 1, opening + 1, words)]
    if isinstance(given[0], ast.GeneratorExp) and source.start(given[0]) == opening:
        # A generator expression that stands alone shares the call's brackets.
        name = names[given[0]]
        inner = f"{name}=(" if name else "("
        before, after = (f"{words}, {inner}", ")") if not keyword or name else (inner, f"), {words}")
        return [(opening + 1, opening + 1, before), (closing, closing, after)]
    pieces: list[Piece] = []
    at, placed = source.skip(opening + 1), False
    for argument in given:
        named = names.get(argument) if isinstance(argument, ast.expr) else None
        # Positional arguments and stars stay in front of keywords.
        first_keyword = named is not None or (isinstance(argument, ast.keyword))
        text = f"{named}=" if named else ""
        # `f(x := 1)` is Python, `f(a=x := 1)` is not.
        bare = bool(named) and isinstance(argument, ast.NamedExpr) and at == source.start(argument)
        text += "(" if bare else ""
        if not placed and (not keyword or first_keyword):
            text, placed = f"{words}, {text}", True
        pieces += [(at, at, text)] if text else []
        end = source.past(argument, closing)
        pieces += [(end, end, ")")] if bare else []
        comma = source.skip(end)
        at = source.skip(comma + 1) if source.text[comma : comma + 1] == "," else comma
    return pieces if placed else [*pieces, (end, end, f", {words}")]
