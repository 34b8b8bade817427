"""Models whose class nothing tells: what a library's loader or a factory gave, known by how the script uses it."""

import ast
import re
import sys
from dataclasses import replace

from genwright.inspect.analysis.abstract_values import Made, Member, Ref
from genwright.inspect.analysis.behaviour import calls_network, is_upkeep
from genwright.inspect.analysis.expressions import FLUENT
from genwright.inspect.analysis.manifest import Interface
from genwright.inspect.analysis.sites import Location

# fmt: off
_LOADERS = frozenset({
    "from_pretrained", "from_single_file", "load_from_checkpoint", "InferenceSession", "create_predictor", "load_model",
    "hub.load", "jit.load", "saved_model.load", "transformers.pipeline",
})
# fmt: on
_MODULE_ONLY = frozenset({"eval", "load_state_dict", "named_parameters", "parameters", "requires_grad_", "train"})
_NO_MODEL = re.compile(r"(Tokenizer|Processor|Config|Extractor|Scheduler|Dataset|Loader)")

Uses = dict[str, list[ast.Call]]


def made_models(location: Location, by_name: bool = False) -> list[Interface]:
    """Classes and methods for the objects of unknown class that are models.

    A loader made them, or the script does with them what can be done only with a network: `model.eval()`, or
    `model.cuda()` as a statement, which for a tensor would have no effect. With `by_name`, the name of the variable
    suffices. A factory stands for the class of what it makes.
    """
    classes: dict[tuple[str, str], Interface] = {}
    methods: dict[str, Interface] = {}
    for by, uses in _uses(location).items():
        crossing = [m for m, calls in uses.items() if not is_upkeep(m) and any(c.args or c.keywords for c in calls)]
        calls = [call for each in uses.values() for call in each]
        known = _is_model(location, by, uses) or (by_name and any(map(calls_network, calls)))
        if not crossing or not known or by.partition(".")[0] in sys.stdlib_module_names:
            continue
        module, owner, factory = _named(by)
        made = classes.setdefault((module, owner), Interface(owner, module, "class"))
        if factory:
            classes[module, owner] = replace(made, factories=made.factories | {factory: None})
        for member in crossing:
            methods.setdefault(f"{owner}.{member}", Interface(f"{owner}.{member}", module, "method"))
    return [*classes.values(), *methods.values()]


def _named(by: str) -> tuple[str, str, str]:
    """Module, class and factory that stand for what made an object; a part of what a call gave has its own class."""
    path, _, last = by.partition("[")[0].rpartition(".")
    module, _, owner = path.rpartition(".")
    if by.endswith("]"):
        return path, re.sub(r"\W+", "_", f"{last}{by.removeprefix(f'{path}.{last}')}").strip("_"), by
    return (module, owner, last) if owner[:1].isupper() else (path, last, "")


def _uses(location: Location) -> dict[str, Uses]:
    """By what made the object: its methods that the script calls; `__call__` where it is called itself.

    The first makers come first, so that a model is named by its own maker and not by what later wraps it.
    """
    found: dict[str, Uses] = {}
    made: dict[str, int] = {}
    calls = [n for n in location.flow.nodes if isinstance(n, ast.Call)]
    for call in sorted(calls, key=lambda n: (n.lineno, n.col_offset)):
        for value in location.flow.values(call.func):
            if isinstance(value, Ref):
                made.setdefault(value.dotted, call.lineno)
            elif isinstance(value, Made):
                found.setdefault(value.by, {}).setdefault("__call__", []).append(call)
            elif isinstance(value, Member) and isinstance(value.instance, Made):
                found.setdefault(value.instance.by, {}).setdefault(value.name, []).append(call)
    return dict(sorted(found.items(), key=lambda item: (made.get(item[0].partition("[")[0], 0), item[0])))


def _is_model(location: Location, by: str, uses: Uses) -> bool:
    names = by.split(".")
    if _NO_MODEL.search(by):
        return False
    if names[-1] in _LOADERS or ".".join(names[-2:]) in _LOADERS or uses.keys() & _MODULE_ONLY:
        return True
    parent = location.flow.scopes.parent
    return any(isinstance(parent[c], ast.Expr) for m, calls in uses.items() if m in FLUENT for c in calls)
