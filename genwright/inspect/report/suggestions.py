"""What would make a script's run better: recorded more fully, repeatable, safe, able to run on another machine."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from genwright.inspect.analysis.abstract_values import Ref
from genwright.inspect.analysis.analyse import Analysis
from genwright.inspect.analysis.dataflow import Flow
from genwright.inspect.analysis.syntax import arguments, is_main_guard
from genwright.inspect.rewrite.rewrite import Rewrite

_UNPICKLERS = {"pickle.load", "pickle.loads", "joblib.load", "dill.load", "cloudpickle.load"}


@dataclass(frozen=True)
class Suggestion:
    """One suggestion: the key of its sentence, the line that it is about (0 for the whole script), what it names."""

    key: str
    line: int = 0
    values: dict[str, Any] = field(default_factory=dict)


def suggestions(rewrite: Rewrite) -> list[Suggestion]:
    """What concerns the record first, then the code, by line."""
    return [*_of_record(rewrite), *sorted(_of_code(rewrite.analysis), key=lambda s: s.line)]


def _of_record(rewrite: Rewrite) -> Iterator[Suggestion]:
    analysis = rewrite.analysis
    for missing in rewrite.missing:
        yield Suggestion("give_value", 0, {"name": missing})
    for choice in rewrite.chosen:
        if "nothing tells" in choice.reason:
            yield Suggestion("replace_placeholder", 0, {"name": choice.name, "value": choice.value})
    asked = [b for b in analysis.unattended.blockers if b.kind == "input"]
    if asked and not rewrite.scenario.answers:
        yield Suggestion("give_answers", asked[0].line, {"text": asked[0].text})
    for unresolved in analysis.location.unresolved:
        yield Suggestion("resolve", unresolved.line, {"text": unresolved.text, "reason": unresolved.reason})
    for site in analysis.location.sites:
        if site.binding.problem:
            values = {"name": site.interface.name, "problem": site.binding.problem}
            yield Suggestion("mend_call", site.call.lineno, values)


def _of_code(analysis: Analysis) -> Iterator[Suggestion]:
    flow, sites = analysis.location.flow, analysis.location.sites
    if sites and not re.search(r"seed|[Gg]enerator\b", analysis.source):
        yield Suggestion("set_seed")
    at_top = [s for s in sites if not s.scope]
    guarded = any(map(is_main_guard, analysis.tree.body))
    if at_top and not guarded and analysis.script.suffix == ".py":
        yield Suggestion("add_guard", at_top[0].call.lineno, {"name": at_top[0].interface.name})
    hiding: dict[int, Suggestion] = {}
    for site in sites:
        for handler in _hiding(site.call, flow):
            values = {"name": site.interface.name}
            hiding.setdefault(handler.lineno, Suggestion("narrow_except", handler.lineno, values))
    yield from hiding.values()
    for node in flow.nodes:
        if isinstance(node, ast.Call):
            yield from _of_call(node, flow)


def _hiding(node: ast.AST, flow: Flow) -> Iterator[ast.ExceptHandler]:
    """The handlers around a call that catch everything."""
    while node in flow.scopes.parent:
        inner, node = node, flow.scopes.parent[node]
        if isinstance(node, ast.Try) and inner in node.body:
            yield from (h for h in node.handlers if h.type is None)


def _of_call(call: ast.Call, flow: Flow) -> Iterator[Suggestion]:
    names = {v.dotted for v in flow.values(call.func) if isinstance(v, Ref)}
    keywords = {k.arg: k.value for k in call.keywords}
    text = ast.unparse(call.func)
    unsafe = isinstance(keywords.get("weights_only"), ast.Constant) and not keywords["weights_only"].value  # type: ignore[attr-defined]
    if names & _UNPICKLERS or unsafe:
        yield Suggestion("unpickle", call.lineno, {"text": text})
    trusted = keywords.get("trust_remote_code")
    if isinstance(trusted, ast.Constant) and trusted.value and "revision" not in keywords:
        yield Suggestion("pin_revision", call.lineno, {"text": text})
    given = [a.value for a in arguments(call) if isinstance(a, ast.Constant)]
    fixed = any(re.fullmatch(r"cuda(:\d+)?", str(value)) for value in given)
    option = text.endswith(("add_argument", "option", "Option"))
    if ((fixed and not option) or text.endswith(".cuda")) and "is_available" not in _statement(call, flow):
        yield Suggestion("choose_device", call.lineno, {"text": f"{text}(...)"})


def _statement(node: ast.AST, flow: Flow) -> str:
    statement = flow.scopes.statement(node)
    return ast.unparse(statement) if not hasattr(statement, "body") else ""
