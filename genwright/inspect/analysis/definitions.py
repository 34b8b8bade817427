"""What a module defines for others: public functions, and classes with constructor, methods and factories."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from genwright.errors import UserError
from genwright.inspect.analysis.bind import Signature
from genwright.inspect.analysis.syntax import Function, statements


@dataclass(frozen=True)
class Definition:
    """A function, a class, or a public method of one, with what its callers see."""

    name: str
    kind: str
    module: str
    signature: Signature | None
    line: int
    summary: str = ""
    decorators: tuple[str, ...] = ()
    factories: dict[str, Signature | None] = field(default_factory=dict)
    bases: tuple[str, ...] = ()  # of a class, by their last names
    home: str = ""  # of an inherited method, the class that defines it
    makes: frozenset[str] = frozenset()  # of a function, the classes whose objects it gives

    @property
    def owner(self) -> str:
        return self.name.rpartition(".")[0] if self.kind == "method" else self.name

    @property
    def on_class(self) -> bool:
        """Whether a method needs no object."""
        return self.kind == "method" and bool({"staticmethod", "classmethod"} & set(self.decorators))


def define(tree: ast.Module, module: str) -> list[Definition]:
    """The public definitions of a module, in their order; a class is followed by its methods."""
    found: list[Definition] = []
    classes = {n.name for n in tree.body if isinstance(n, ast.ClassDef)}
    functions: dict[str, list[Function]] = {}  # by the class of which they make an object
    for node in tree.body if classes else ():
        if isinstance(node, Function):
            for name in _made_by(node) & classes:
                functions.setdefault(name, []).append(node)
    for node in tree.body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            function = _definition(node, node.name, "function", module, Signature.of(node))
            found.append(replace(function, makes=frozenset(_made_by(node))))
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found += _class(node, module, functions.get(node.name, []))
    return found


def inherited(definitions: Iterable[Definition]) -> list[Definition]:
    """The methods that classes inherit from others among the definitions, under the inheriting class's name."""
    every = list(definitions)
    classes = {d.name: d for d in every if d.kind == "class"}
    methods: dict[str, dict[str, Definition]] = {}
    for definition in every:
        if definition.kind == "method":
            methods.setdefault(definition.owner, {})[definition.name.rpartition(".")[2]] = definition
    found: list[Definition] = []
    for name, inheriting in classes.items():
        own, pending, seen = set(methods.get(name, {})), list(inheriting.bases), {name}
        while pending:
            base = pending.pop(0)
            if base in seen or base not in classes:
                continue
            seen.add(base)
            for member, method in methods.get(base, {}).items():
                if member not in own and member not in inheriting.factories:
                    own.add(member)
                    found.append(replace(method, name=f"{name}.{member}", module=inheriting.module, home=base))
            pending += classes[base].bases
    return found


def _class(node: ast.ClassDef, module: str, makers: list[Function]) -> list[Definition]:
    methods = {n.name: n for n in node.body if isinstance(n, Function)}
    factories: dict[str, Signature | None] = {}
    for name, method in methods.items():
        decorators = _decorators(method)
        # A class method that returns cls(...) or its own type makes objects of the class.
        on_class = "classmethod" in decorators or "staticmethod" in decorators
        if not name.startswith("_") and on_class and _made_by(method) & {"cls", node.name}:
            factories[name] = Signature.of(method, bound="classmethod" in decorators)
    factories |= {function.name: Signature.of(function) for function in makers}
    constructor = Signature.of(methods["__init__"], bound=True) if "__init__" in methods else _fields(node)
    found = [_definition(node, node.name, "class", module, constructor, factories)]
    for name, method in methods.items():
        if not name.startswith("_") and name not in factories and "property" not in _decorators(method):
            bound = "staticmethod" not in _decorators(method)
            found.append(
                _definition(method, f"{node.name}.{name}", "method", module, Signature.of(method, bound=bound))
            )
    # Calling a torch module runs its `forward`.
    call = methods.get("__call__") or methods.get("forward")
    if call is not None:
        signature = Signature.of(call, bound=True)
        found.append(_definition(call, f"{node.name}.__call__", "method", module, signature))
    return found


def _definition(
    node: Function | ast.ClassDef,
    name: str,
    kind: str,
    module: str,
    signature: Signature | None,
    factories: dict[str, Signature | None] | None = None,
) -> Definition:
    summary = (ast.get_docstring(node) or "").strip().partition("\n")[0]
    bases = tuple(_last_name(b) for b in node.bases) if isinstance(node, ast.ClassDef) else ()
    return Definition(
        name, kind, module, signature, node.lineno, summary, _decorators(node), factories if factories else {}, bases
    )


def _last_name(base: ast.expr) -> str:
    return ast.unparse(base).partition("[")[0].rpartition(".")[2]


def _decorators(node: Function | ast.ClassDef) -> tuple[str, ...]:
    return tuple(ast.unparse(d) for d in node.decorator_list)


def _made_by(function: Function) -> set[str]:
    """The classes, by the names it uses, of which the annotation or a return statement says that it gives an object."""
    found = {ast.unparse(function.returns).strip("'\"")} if function.returns is not None else set()
    made: dict[str, str] = {}
    returned: list[ast.expr] = []
    for node in statements(function.body):
        if isinstance(node, ast.Assign) and (name := _constructs(node.value)):
            made |= {target.id: name for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Return) and node.value is not None:
            returned.append(node.value)
    for value in returned:
        found.add(_constructs(value) or (made.get(value.id, "") if isinstance(value, ast.Name) else ""))
    return found - {""}


def _constructs(value: ast.expr) -> str:
    return value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""


def _fields(node: ast.ClassDef) -> Signature | None:
    """A dataclass's constructor takes its fields; what a class inherits cannot be seen from here."""
    if node.bases:
        return None
    if not any("dataclass" in d for d in _decorators(node)):
        return Signature(())
    fields = [n for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)]
    taken = [f for f in fields if "ClassVar" not in ast.unparse(f.annotation) and "init=False" not in ast.unparse(f)]
    try:
        return Signature.parse(f"({', '.join(map(ast.unparse, taken))})")
    except UserError:  # keyword-only fields, told elsewhere
        return None
