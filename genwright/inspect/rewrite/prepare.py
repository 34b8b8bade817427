"""The scenario's changes to a script, before any call is routed: `[set]` and the user interface's handler.

They are the same whether the script is then rewritten or run as it is with its interfaces wrapped.
"""

import ast
from typing import Any

from genwright.errors import UserError
from genwright.inspect.analysis.analyse import Analysis
from genwright.inspect.analysis.bind import Signature
from genwright.inspect.analysis.scenario import Scenario, literal
from genwright.inspect.analysis.unattended import Handler
from genwright.inspect.rewrite.edits import Edits, apply
from genwright.inspect.rewrite.overrides import plan_overrides


def prepare(analysis: Analysis, scenario: Scenario) -> tuple[str, dict[str, str]]:
    """The script's source with the scenario's changes, and what each name of `[set]` was before."""
    edits = Edits(analysis.text)
    overridden = plan_overrides(analysis.tree, scenario.overrides, edits)
    _plan_interface(analysis, scenario, edits)
    if not edits.pieces and not edits.module_head and not edits.module_tail:
        return analysis.source, overridden
    return apply(edits, analysis.tree, analysis.script.name), overridden


def _plan_interface(analysis: Analysis, scenario: Scenario, edits: Edits) -> None:
    """A user interface's launch becomes the call of a handler; a page gets the call at its end."""
    unattended = analysis.unattended
    if not unattended.launches and not unattended.page:
        if scenario.handler:
            raise UserError(f"[ui] handler: {analysis.script.name} starts no user interface.")
        return
    handler = unattended.handler(scenario.handler)
    if handler is None:
        if scenario.handler:
            have = ", ".join(h.name for h in unattended.handlers)
            raise UserError(f"[ui] handler: {analysis.script.name} has no {scenario.handler!r}; it has {have}.")
        return
    if handler.missing(scenario.handler_arguments):
        return
    call = _handler_call(handler, scenario)
    if unattended.page:
        edits.module_tail += call + "\n"
        return
    first, *others = unattended.launches
    edits.replace(first, call)
    for launch in others:
        edits.replace(launch, "None")


def _handler_call(handler: Handler, scenario: Scenario) -> str:
    parameters = [p.name for p in Signature.of(handler.function).parameters]
    unknown = sorted(set(scenario.handler_arguments) - set(parameters))
    if unknown:
        raise UserError(f"[ui] {handler.name} has no parameter {unknown[0]!r}; it has {', '.join(parameters)}.")
    given = {**handler.defaults, **scenario.handler_arguments}
    arguments = ", ".join(f"{p}={_argument(handler, p, given[p])}" for p in parameters if p in given)
    call = f"{handler.name}({arguments})"
    if isinstance(handler.function, ast.AsyncFunctionDef):
        return f"__import__('asyncio').run({call})"
    yields = any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(handler.function))
    return f"list({call})" if yields else call


def _argument(handler: Handler, parameter: str, value: Any) -> str:
    """A value as its component gives it: a path of a picture or a sound is loaded as the component's type says."""
    text = literal(value)
    component = handler.components.get(parameter)
    if component is None or not isinstance(value, str):
        return text
    kind = component.type or "numpy"
    if component.kind == "Image" and kind in ("numpy", "pil"):
        opened = f"__import__('PIL.Image').Image.open({text}).convert('RGB')"
        return opened if kind == "pil" else f"__import__('numpy').asarray({opened})"
    if component.kind == "Audio" and kind == "numpy":
        return f"__import__('scipy.io.wavfile').io.wavfile.read({text})"
    return text
