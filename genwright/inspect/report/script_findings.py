"""What a script's source alone shows: unseeded random numbers, arguments never used, handlers that hide failures."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from genwright.inspect.analysis.abstract_values import Ref
from genwright.inspect.analysis.dataflow import Flow
from genwright.inspect.analysis.locate import parse
from genwright.inspect.analysis.syntax import Function, arguments, walk

Told = tuple[int, str]  # a line and what is there

# Functions that draw from a library's own generator, and those that seed it.
_PYTHON = frozenset(
    {"random", "randint", "randrange", "choice", "choices", "sample", "shuffle", "uniform", "gauss", "normalvariate"}
    | {"betavariate", "expovariate", "triangular", "getrandbits", "randbytes"}
)
_NUMPY = _PYTHON | {"rand", "randn", "normal", "permutation", "standard_normal", "random_sample", "poisson", "binomial"}
_TORCH = {"rand", "randn", "randint", "randperm"}
_TORCH_ON_ARGUMENT = {"normal", "multinomial", "bernoulli", "rand_like", "randn_like", "randint_like"}
# Each function that seeds, with the generators that it seeds.
_SEEDERS = {
    "random.seed": {"python"},
    "numpy.random.seed": {"numpy"},
    "torch.manual_seed": {"torch", "torch.cuda"},
    "torch.random.manual_seed": {"torch", "torch.cuda"},
    "torch.cuda.manual_seed": {"torch.cuda"},
    "torch.cuda.manual_seed_all": {"torch.cuda"},
}
_SEED_ALL = ("set_seed", "seed_everything", "seed_all", "set_random_seed", "fix_seed")
# Generators that take their seed when they are made.
_GENERATORS = {"numpy.random.default_rng", "numpy.random.RandomState", "random.Random", "numpy.random.SeedSequence"}
_REPORTING = {"print", "exception", "error", "warning", "warn", "critical", "info", "debug", "print_exc", "log"}


@dataclass(frozen=True)
class Source:
    """A script's text, syntax tree and dataflow."""

    text: str
    tree: ast.Module
    flow: Flow

    @classmethod
    def read(cls, text: str) -> Self:
        tree = parse(text, "The script")
        return cls(text, tree, Flow(tree, "", lambda reference: None))

    def line_that_names(self, path: str) -> int | None:
        """The line whose text has the name of a file."""
        name = re.compile(rf"(?<![\w.-]){re.escape(Path(path).name)}(?![\w-])")
        return next((number for number, line in enumerate(self.text.splitlines(), 1) if name.search(line)), None)


def unseeded_draws(source: Source) -> Iterator[Told]:
    """The first draw from each library's generator that nothing seeds."""
    seeded: set[str] = set()
    draws: list[tuple[int, str, str]] = []
    for call in sorted(_calls(source), key=lambda c: c.lineno):
        for name in (v.dotted for v in source.flow.values(call.func) if isinstance(v, Ref)):
            last = name.rpartition(".")[2]
            if last in _SEED_ALL:
                seeded.update(*_SEEDERS.values())
            seeded |= _SEEDERS.get(name, set())
            if name in _GENERATORS and ((not call.args and not call.keywords) or _is_none(call)):
                yield call.lineno, f"{name}() has no seed"
            generator = _drawn_from(name, call)
            # A generator that is passed in has its own seed.
            if generator and not any(k.arg == "generator" for k in call.keywords):
                draws.append((call.lineno, name, generator))
    told = set()
    for line, name, generator in draws:
        seeder = next(s for s, generators in _SEEDERS.items() if generator in generators)
        if generator not in seeded and seeder not in told:
            told.add(seeder)
            yield line, f"{name} draws from a generator that nothing seeds ({seeder} would)"


def _drawn_from(name: str, call: ast.Call) -> str:
    module, _, last = name.rpartition(".")
    if module == "random" and last in _PYTHON:
        return "python"
    if module == "numpy.random" and last in _NUMPY:
        return "numpy"
    if module == "torch" and last in _TORCH | _TORCH_ON_ARGUMENT:
        return "torch.cuda" if _may_be_on_gpu(last, call) else "torch"
    return ""


def _may_be_on_gpu(function: str, call: ast.Call) -> bool:
    """Whether a draw of torch is on a GPU, as far as its source tells."""
    device = next((k.value for k in call.keywords if k.arg == "device"), None)
    if device is None:
        return function in _TORCH_ON_ARGUMENT
    if isinstance(device, ast.Call) and len(device.args) == 1:  # torch.device("cpu")
        device = device.args[0]
    return not (isinstance(device, ast.Constant) and device.value in ("cpu", None))


def _is_none(call: ast.Call) -> bool:
    return bool(call.args) and isinstance(call.args[0], ast.Constant) and call.args[0].value is None


def _calls(source: Source) -> Iterator[ast.Call]:
    return (n for n in source.flow.nodes if isinstance(n, ast.Call))


def unused_arguments(source: Source) -> Iterator[Told]:
    """Options of the command line that nothing reads, and parameters that their function does not use."""
    yield from _unused_options(source)
    for function in (n for n in source.flow.nodes if isinstance(n, Function)):
        yield from _unused_parameters(source, function)


def _unused_options(source: Source) -> Iterator[Told]:
    if _whole_namespace(source):
        return
    attributes = {n.attr for n in source.flow.nodes if isinstance(n, ast.Attribute)}
    texts = Counter(n.value for n in source.flow.nodes if isinstance(n, ast.Constant) and isinstance(n.value, str))
    for call in _calls(source):
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"):
            continue
        flags = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        dest = next((k.value for k in call.keywords if k.arg == "dest"), None)
        if any(k.arg == "action" and ast.unparse(k.value) in ("'version'", "'help'") for k in call.keywords):
            continue
        name = str(dest.value) if isinstance(dest, ast.Constant) else max(flags, key=len, default="")
        read = name.lstrip("-").replace("-", "_")
        # `getattr(args, "name")` reads it too; the text of its declaration does not.
        declared = sum(isinstance(n, ast.Constant) and n.value == read for n in walk(call))
        if read and read not in attributes and texts[read] <= declared:
            yield call.lineno, f"the option {name} is read by nothing"


def _whole_namespace(source: Source) -> bool:
    """Whether the parsed options go on as a whole, to where any of them may be read."""
    parsed = set()
    for node in source.flow.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            function = node.value.func
            if isinstance(function, ast.Attribute) and function.attr.startswith("parse_"):
                parsed |= {n.id for t in node.targets for n in walk(t) if isinstance(n, ast.Name)}
    for call in _calls(source):
        own = bool(source.flow.definitions(call.func))
        plain = isinstance(call.func, ast.Name) and call.func.id in ("print", "getattr", "hasattr", "setattr")
        if not own and not plain and any(isinstance(a, ast.Name) and a.id in parsed for a in arguments(call)):
            return True
    return False


def _unused_parameters(source: Source, function: Function) -> Iterator[Told]:
    scopes = source.flow.scopes
    # A method or a decorated function may have the parameters that its caller wants.
    if isinstance(scopes.parent[function], ast.ClassDef) or _is_stub(function):
        return
    called = source.flow.callers(function)
    handed_on = any(
        isinstance(n, ast.Name) and n.id == function.name and n not in [c.func for c in called]
        for n in source.flow.nodes
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    )
    if function.decorator_list or handed_on or not called:
        return
    used = {n.id for s in function.body for n in walk(s) if isinstance(n, ast.Name)}
    if used & {"locals", "vars", "eval", "exec"}:
        return
    for parameter in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]:
        if parameter.arg not in used and not parameter.arg.startswith("_"):
            yield parameter.lineno, f"{function.name} does not use its parameter {parameter.arg}"


def _is_stub(function: Function) -> bool:
    plain = (ast.Pass, ast.Raise)
    return all(
        isinstance(s, plain) or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)) for s in function.body
    )


def hiding_handlers(source: Source) -> Iterator[tuple[ast.ExceptHandler, int, int]]:
    """Handlers that neither raise nor tell of the exception, with the lines that they guard."""
    for node in source.flow.nodes:
        if isinstance(node, ast.Try) and node.body:
            for handler in node.handlers:
                inside = [n for s in handler.body for n in walk(s)]
                raises = any(isinstance(n, ast.Raise) for n in inside)
                names = handler.name and any(isinstance(n, ast.Name) and n.id == handler.name for n in inside)
                called = [n.func for n in inside if isinstance(n, ast.Call)]
                told = {getattr(f, "attr", None) or getattr(f, "id", None) for f in called} & _REPORTING
                if not raises and not names and not told:
                    yield handler, node.body[0].lineno, node.body[-1].end_lineno or node.body[-1].lineno
