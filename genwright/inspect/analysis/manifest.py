"""The manifest: a project's interfaces by name, in TOML or JSON."""

import ast
import contextlib
import json
import re
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from genwright.errors import UserError
from genwright.inspect.analysis.bind import Signature
from genwright.inspect.analysis.definitions import Definition, define
from genwright.inspect.analysis.scenario import toml_value
from genwright.inspect.analysis.source_files import read_data
from genwright.inspect.analysis.syntax import Function

_NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)
_KEYS = {"name", "kind", "module", "class", "signature", "files", "returns", "summary", "factories", "on_class"}


@dataclass(frozen=True)
class Interface:
    """One border to the model: a function, a method (`OptLM.generate`), or a class with its constructor's signature."""

    name: str
    module: str
    kind: str = "function"
    signature: Signature | None = None
    files: tuple[str, ...] = ()
    returns: str = ""
    summary: str = ""
    factories: dict[str, Signature | None] = field(default_factory=dict)  # by name; with its module if it is another
    on_class: bool = False  # a static or class method, which needs no object

    @classmethod
    def of(cls, definition: Definition) -> "Interface":
        """The interface that a definition of the project is."""
        signature = definition.signature
        return cls(
            definition.name,
            definition.module,
            definition.kind,
            signature,
            tuple(p.name for p in signature.parameters if p.is_file) if signature else (),
            (signature.returns if signature else None) or "",
            definition.summary,
            definition.factories,
            definition.on_class,
        )

    def factory(self, reference: str) -> str:
        """The key of the factory that a script's dotted reference means, or ""."""
        owner, _, last = reference.rpartition(".")
        for key in self.factories:
            module, _, name = key.rpartition(".")
            if name == last and (
                Interface(name, module or self.module).named_by(reference)
                or (not module and owner and self.named_by(owner))
            ):
                return key
        return ""

    @property
    def owner(self) -> str:
        """The class of a method, or the class itself."""
        return self.name.rpartition(".")[0] if self.kind == "method" else self.name

    @property
    def member(self) -> str:
        """The bare name that a call uses."""
        return self.name.rpartition(".")[2]

    def named_by(self, reference: str) -> bool:
        """Whether a script's dotted reference means this interface's function or class, also through a re-export.

        `insightface.app.FaceAnalysis` means `python-package.insightface.app.face_analysis.FaceAnalysis`: the last name
        is the same and the reference's module opens some tail of the interface's.
        """
        module, _, name = reference.rpartition(".")
        if name != self.owner:
            return False
        if not self.module or module.endswith(f".{self.module}"):
            return True
        mine, theirs = self.module.split("."), module.split(".") if module else []
        return any(mine[start : start + len(theirs)] == theirs for start in range(len(mine)))


@dataclass(frozen=True)
class Manifest:
    """A project's interfaces."""

    project: str
    interfaces: tuple[Interface, ...]
    root: str = ""  # the project's folder, where the description tells

    def functions(self) -> list[Interface]:
        return [i for i in self.interfaces if i.kind == "function"]

    def classes(self) -> list[Interface]:
        """Classes, also those that only a method names."""
        named = {i.name: i for i in self.interfaces if i.kind == "class"}
        for method in self.interfaces:
            if method.kind == "method" and method.owner not in named:
                named[method.owner] = Interface(method.owner, method.module, "class")
        return list(named.values())

    def method(self, owner: str, member: str) -> Interface | None:
        return self._methods.get(f"{owner}.{member}")

    @cached_property
    def _methods(self) -> dict[str, Interface]:
        return {i.name: i for i in reversed(self.interfaces) if i.kind == "method"}

    @cached_property
    def _members(self) -> Counter[str]:
        return Counter(i.member for i in self.interfaces if i.kind != "class")

    def key(self, interface: Interface) -> str:
        """What `exe.run` is given: the bare name where it is unique, else the qualified one."""
        is_unique = self._members[interface.member] == 1
        return interface.member if is_unique and not interface.member.startswith("__") else interface.name

    def only(self, names: list[str]) -> "Manifest":
        """The interfaces that a scenario asks for, with the classes of its methods."""
        unknown = [n for n in names if all(n not in (i.name, i.member) for i in self.interfaces)]
        if unknown:
            have = ", ".join(i.name for i in self.interfaces)
            raise UserError(f"The manifest of {self.project} has no interface {unknown[0]!r}; it has {have}.")
        chosen = [i for i in self.interfaces if i.name in names or i.member in names]
        owners = {i.owner for i in chosen if i.kind == "method"}
        return Manifest(
            self.project,
            tuple(i for i in self.interfaces if i in chosen or (i.kind == "class" and i.name in owners)),
        )

    def to_dict(self) -> dict[str, Any]:
        return {"project": self.project, "interface": [_entry(i) for i in self.interfaces]}

    def to_toml(self) -> str:
        lines = [f"project = {toml_value(self.project)}"]
        for interface in self.interfaces:
            lines += ["", "[[interface]]"]
            lines += [f"{key} = {toml_value(value)}" for key, value in _entry(interface).items()]
        return "\n".join(lines) + "\n"


def load_manifest(path: Path) -> Manifest:
    """Read a manifest, or one of Inspection's InterfaceInfo files."""
    text = read_data(path, "manifest")
    kind = "JSON" if path.suffix == ".json" else "TOML"
    try:
        data = json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"The manifest {path} is not valid {kind}: {error}.") from error
    if isinstance(data, dict) and "API_Implementations" in data:
        return _from_interface_info(path.stem, data)
    return parse_manifest(data, str(path))


def parse_manifest(data: Any, where: str) -> Manifest:
    """Check a manifest's data; `where` names it in errors."""
    entries = data.get("interface") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{where} names no interface; a manifest has `project` and one `[[interface]]` table each.")
    project = data.get("project")
    if not isinstance(project, str) or not re.fullmatch(r"[\w.\- ]+", project):
        raise UserError(f"{where}: `project` must be a plain name, not {project!r}.")
    return Manifest(project, tuple(_interface(entry, where) for entry in entries))


def _interface(entry: Any, where: str) -> Interface:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise UserError(f"{where}: every interface needs a `name`.")
    name = entry["name"]
    unknown = set(entry) - _KEYS
    if unknown:
        raise UserError(f"{where}: interface {name!r} has an unknown key {min(unknown)!r}; known are {sorted(_KEYS)}.")
    if "class" in entry and "." not in name:
        name = f"{entry['class']}.{name}"
    if not all(part.isidentifier() for part in name.split(".")):
        raise UserError(f"{where}: {name!r} is not a name that Python could call.")
    kind = entry.get("kind") or ("method" if "." in name else "function")
    if kind not in ("function", "method", "class"):
        raise UserError(f"{where}: interface {name!r} is of kind {kind!r}; kinds are function, method and class.")
    texts = {key: entry.get(key, "") for key in ("module", "returns", "summary", "signature")}
    files, factories = entry.get("files", []), entry.get("factories", {})
    if not all(isinstance(t, str) for t in texts.values()) or not isinstance(files, list):
        raise UserError(f"{where}: interface {name!r}: module, signature, returns and summary are texts, files a list.")
    if not isinstance(factories, dict) or not all(isinstance(v, str) for v in factories.values()):
        raise UserError(f"{where}: interface {name!r}: factories is a table of names and signatures.")
    return Interface(
        name,
        texts["module"],
        kind,
        Signature.parse(texts["signature"]) if texts["signature"] else None,
        tuple(map(str, files)),
        texts["returns"],
        texts["summary"],
        {str(k): Signature.parse(v) if v else None for k, v in factories.items()},
        entry.get("on_class") is True,
    )


def _entry(interface: Interface) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": interface.name, "kind": interface.kind, "module": interface.module}
    if interface.kind == "method":
        entry["class"] = interface.owner
    entry["signature"] = str(interface.signature) if interface.signature else ""
    entry["files"] = list(interface.files)
    entry |= {"returns": interface.returns, "summary": interface.summary}
    entry["factories"] = {k: str(v) if v else "" for k, v in interface.factories.items()}
    entry["on_class"] = interface.on_class
    return {k: v for k, v in entry.items() if v}


def _parsed(text: str) -> ast.Module:
    """An implementation's syntax tree; of one that is not Python any more, the classes and functions that it heads."""
    text = text.replace("\u200b", "").replace("\ufeff", "")
    for source in (text, "\n".join(_heads(text))):
        with warnings.catch_warnings(action="ignore"), contextlib.suppress(*_NOT_PYTHON):
            return ast.parse(source)
    return ast.Module([], [])


def _heads(text: str) -> Iterator[str]:
    """The first lines of top-level classes, of their methods and of functions, each with an empty body."""
    inside = False
    for match in re.finditer(r"^([ \t]*)((?:async )?def|class) +(\w+)(.*)", text, re.MULTILINE):
        indent, kind, name, rest = match.groups()
        if kind == "class" and not indent:
            inside = True
            yield f"class {name}:\n ..."
        elif kind != "class" and (inside or not indent):
            inside = inside and bool(indent)
            whole = re.match(r"(\(.*\))\s*(->[^:]*)?:", rest)
            signature = whole.group(1) if whole and _is_signature(whole.group(1)) else "(self, *args, **kwargs)"
            yield f"{' ' if inside else ''}{kind} {name}{signature}: ..."


def _is_signature(text: str) -> bool:
    try:
        return bool(Signature.parse(text))
    except UserError:
        return False


def _with_callers(tree: ast.Module, wanted: str) -> set[str]:
    """The name of an implementation, and of the functions beside it that only wrap it, as `generate_sync` does."""
    functions = [n for n in tree.body if isinstance(n, Function)]
    if wanted not in {f.name for f in functions}:
        return {wanted}
    return {wanted} | {
        f.name
        for f in functions
        if any(isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == wanted for n in ast.walk(f))
    }


def _from_interface_info(project: str, data: dict[str, Any]) -> Manifest:
    """Inspection's own description of a project: implementations as source text, each with the path it came from."""
    root = [part for part in str(data.get("Project_Root", "")).lower().split("/") if part]
    interfaces: dict[str, Interface] = {}
    implementations = data["API_Implementations"]
    if not isinstance(implementations, list) or not all(isinstance(item, dict) for item in implementations):
        raise UserError(f"The interface file of {project}: `API_Implementations` must be a list of tables.")
    for item in implementations:
        path = [part for part in str(item.get("Path", "")).split("/") if part]
        module = ".".join(path[len(root) :] if [p.lower() for p in path[: len(root)]] == root else path[-1:])
        module = module.removesuffix(".py").removesuffix(".__init__")
        tree = _parsed(str(item.get("Implementation", "")))
        found = define(tree, module)
        wanted = _with_callers(tree, re.sub(r"^class[ _]", "", str(item.get("Name", "")).strip()))
        named = [d for d in found if d.owner in wanted]
        for definition in named or found:
            interfaces.setdefault(definition.name, Interface.of(definition))
    if not interfaces:
        raise UserError(f"The interface file of {project} holds no implementation that Python can read.")
    return Manifest(project, tuple(interfaces.values()), str(data.get("Project_Root", "")))
