"""What functions and methods do with a model, read from their bodies: load weights, call a network, and so on."""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from genwright.inspect.analysis.expressions import FLUENT
from genwright.inspect.analysis.syntax import Function, statements, walk

LOADS, CALLS, REMOTE = "it loads weights", "it calls a network or a session", "it asks a model behind a network API"
NO_GRADIENTS, FORWARD = "it runs without gradients", "it is a network's forward pass"
DEVICE, TENSORS = "it moves tensors to a device", "it computes with tensors"
PARSES = "it reads the command line"
# What crosses to a model, with its weight in a ranking; what only prepares for that weighs less.
CROSSING = {FORWARD: 3.0, CALLS: 3.0, NO_GRADIENTS: 3.0, REMOTE: 3.0}
PREPARING = {LOADS: 1.5, DEVICE: 0.5, TENSORS: 0.5}

# fmt: off
_LOADERS = frozenset({
    "from_pretrained", "load_state_dict", "load_from_checkpoint", "load_weights", "load_checkpoint", "InferenceSession",
    "safe_open", "create_predictor", "import_graph_def", "hf_hub_download", "torch.load", "torch.jit.load",
    "torch.hub.load", "paddle.load", "tf.saved_model.load", "keras.models.load_model", "load_file", "joblib.load",
    "load_model", "Checkpoint.restore", "from_single_file",
})
_NETWORKS = re.compile(
    r"(^|_)(model|net|network|module|session|sess|predictor|pipe|pipeline|generator|encoder|decoder|unet|vae|llm|lm|gpt|"
    r"transformer|detector|recognizer|vocoder|classifier|estimator|inferencer|algo|engine|agent|embedder)s?(_|\d|$)"
)
_BASES = re.compile(r"(Module|Model|Layer|Pipeline|Network|Predictor|Inferencer|Estimator|Executor)$")
_REMOTE = re.compile(
    r"(completions?|ChatCompletion|responses|messages|embeddings)\.a?create$|^(openai|litellm|anthropic)\."
)
_FRAMEWORKS = frozenset({"torch", "tf", "tensorflow", "paddle", "jax", "jnp", "keras", "onnxruntime", "mx", "F", "nn"})
_SETTERS = frozenset({
    "state_dict", "parameters", "named_parameters", "modules", "children", "append", "update", "items", "keys", "get",
    "close", "apply", "load_state_dict", "register_buffer", "add_module", "pop", "extend", "values", "split",
})
# fmt: on
_UPKEEP = re.compile(r"(load|save|set|add|enable|disable|register|resize|freeze|fuse|named|print|zero|gradient)(_|$)")
_PARSERS = frozenset({"ArgumentParser", "parse_args", "parse_known_args", "add_argument"})


@dataclass
class Behaviour:
    """What one function does itself, the names of what it calls, and what those do in turn."""

    own: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)
    reached: set[str] = field(default_factory=set)
    owned: set[str] = field(default_factory=set)  # what other methods of its class do
    without_gradients: bool = False  # by its decorator: its author's own mark
    returns: bool = False
    by_use: bool = False  # known only by how the script uses it

    @property
    def crosses(self) -> bool:
        return bool((self.own | self.reached | self.owned) & CROSSING.keys() or LOADS in self.own | self.owned)

    def judge(self) -> list[tuple[float, str]]:
        """Points with their reasons: in full for what it does itself, less for what it only leads to."""
        points = [(w, reason) for reason, w in (CROSSING | PREPARING).items() if reason in self.own]
        points += [
            (w / 1.5, f"through what it calls {reason}") for reason, w in CROSSING.items() if reason in self.reached
        ]
        points += [
            (w / 3, f"of its class, {reason}") for reason, w in (CROSSING | PREPARING).items() if reason in self.owned
        ]
        return sorted(points, reverse=True)[:3] + ([(-4.0, PARSES)] if PARSES in self.own else [])


def behaviours(tree: ast.Module) -> dict[str, Behaviour]:
    """The behaviour of each function and method of a module, by qualified name."""
    found: dict[str, Behaviour] = {}
    known = _functions_and_modules(tree)
    for node in tree.body:
        if isinstance(node, Function):
            found[node.name] = _behaviour(node, known)
        elif isinstance(node, ast.ClassDef):
            methods = {n.name: _behaviour(n, known) for n in node.body if isinstance(n, Function)}
            is_network = any(_BASES.search(ast.unparse(b).partition("[")[0]) for b in node.bases)
            for name in (
                {"forward", "__call__", "call"} & methods.keys() if is_network else {"forward"} & methods.keys()
            ):
                methods[name].own.add(FORWARD)
            if "forward" in methods:
                methods.setdefault("__call__", methods["forward"])
            together = set().union(*(m.own for m in methods.values())) - {PARSES}
            for method in methods.values():
                method.owned |= together - method.own
            found |= {f"{node.name}.{name}": method for name, method in methods.items()}
    return found


def propagate(files: Iterable[dict[str, Behaviour]]) -> None:
    """Propagate behaviour from callees to callers.

    A callee is looked up in the caller's file first, and elsewhere if only one function there has its name.
    """
    every = list(files)
    elsewhere: dict[str, list[Behaviour]] = {}
    for file in every:
        for name, behaviour in file.items():
            elsewhere.setdefault(name.rpartition(".")[2], []).append(behaviour)
    for _ in range(3):
        for file in every:
            here: dict[str, list[Behaviour]] = {}
            for name, behaviour in file.items():
                here.setdefault(name.rpartition(".")[2], []).append(behaviour)
            for behaviour in file.values():
                for name in behaviour.called:
                    targets = here.get(name) or elsewhere.get(name, [])
                    for target in targets if len(targets) == 1 or name in here else ():
                        behaviour.reached |= (target.own | target.reached) - {PARSES} - behaviour.own


def _functions_and_modules(tree: ast.Module) -> set[str]:
    """The names that a module defines as functions, or imports: none of them is a network."""
    found = {n.name for n in tree.body if isinstance(n, Function)}
    for node in walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return found


def _behaviour(function: Function, known: set[str]) -> Behaviour:
    found = Behaviour()
    decorators = " ".join(ast.unparse(d) for d in function.decorator_list)
    if "no_grad" in decorators or "inference_mode" in decorators:
        found.own.add(NO_GRADIENTS)
        found.without_gradients = True
    found.returns = any(_gives(statement) for statement in statements(function.body))
    for node in walk(*function.body):
        if isinstance(node, ast.Call):
            _read_call(node, found, known)
        elif isinstance(node, ast.withitem):
            text = ast.unparse(node.context_expr)
            if "no_grad" in text or "inference_mode" in text or "autocast" in text:
                found.own.add(NO_GRADIENTS)
    return found


def _gives(statement: ast.stmt) -> bool:
    value = getattr(statement, "value", None)
    return (value is not None and isinstance(statement, ast.Return)) or isinstance(value, ast.Yield | ast.YieldFrom)


def _read_call(call: ast.Call, found: Behaviour, known: set[str]) -> None:
    names = _names(call.func)
    if not names:
        return
    last, dotted = names[-1], ".".join(names)
    found.called.add(last)
    if last in _LOADERS or ".".join(names[-2:]) in _LOADERS or dotted in _LOADERS:
        found.own.add(LOADS)
    elif last == "cuda" or (last == "to" and call.args):
        found.own.add(DEVICE)
    elif last in _PARSERS:
        found.own.add(PARSES)
    elif _REMOTE.search(dotted):
        found.own.add(REMOTE)
    elif names[0] in _FRAMEWORKS and len(names) > 1:
        found.own.add(TENSORS)
    elif names[0] not in known and calls_network(call):
        found.own.add(CALLS)


def is_upkeep(member: str) -> bool:
    """Whether a method of a network only prepares or reads it."""
    return member in FLUENT | _SETTERS or bool(_UPKEEP.match(member))


def calls_network(call: ast.Call) -> bool:
    """`self.model(x)`, `net(x)`, `session.run(...)`: the object is called, or a method of it that takes inputs."""
    names = _names(call.func)
    if not names or (not call.args and not call.keywords):
        return False
    if names[-1] == "forward":
        return True
    if (
        _NETWORKS.search(names[-1])
        and names[-1].islower()
        and not re.match(r"(get|load|build|create|make)_", names[-1])
    ):
        return True
    owner = names[-2] if len(names) > 1 else ""
    return bool(_NETWORKS.search(owner)) and owner.islower() and not is_upkeep(names[-1])


def _names(node: ast.expr) -> list[str]:
    """`a.b().c[0].d` as its names."""
    names: list[str] = []
    while True:
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Subscript):
            node = node.value
        else:
            return [node.id, *reversed(names)] if isinstance(node, ast.Name) else names[::-1]
