"""A script's place in its repository: root, dotted names, and other modules' sources."""

import ast
import os
import warnings
from collections import OrderedDict
from functools import cached_property
from pathlib import Path

from genwright.errors import UserError
from genwright.inspect.analysis.sites import Location
from genwright.inspect.analysis.source_files import read_script

_MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")
_SKIPPED = {"venv", "env", "node_modules", "build", "dist", "site-packages", "third_party", "__pycache__"}
_MOST_FILES = 20_000
_MOST_BYTES = 200_000_000
_TREES = 32  # syntax trees are large; more are parsed anew from their text


class Repository:
    """The tree of Python files around a script; each is read once, and parsed only when asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._sources: dict[Path, str | UserError] = {}
        self._found: dict[tuple[str, Path | None], Path | None] = {}
        self._bytes = 0
        self._parsed: OrderedDict[Path, ast.Module | None] = OrderedDict()
        self.located: tuple[str, Location] | None = None  # the source that was drafted for last, and what it calls

    def source(self, file: Path) -> str:
        """A file's text, or one sentence why not."""
        if file not in self._sources:
            try:
                self._sources[file] = text = read_script(file)
                self._bytes += len(text)
            except UserError as error:
                self._sources[file] = error
            if self._bytes > _MOST_BYTES:
                raise UserError(f"{self.root} has more than {_MOST_BYTES:,} bytes of Python; pass a part of it.")
        known = self._sources[file]
        if isinstance(known, UserError):
            raise known
        return known

    @classmethod
    def around(cls, script: Path) -> "Repository":
        """The nearest folder above that looks like a repository's root, else the script's own folder."""
        folder = Path(os.path.realpath(script)).parent  # `resolve` raises where a link leads to itself
        for candidate in [folder, *folder.parents]:
            if any((candidate / mark).exists() for mark in _MARKS):
                return cls(candidate)
        return cls(folder)

    @cached_property
    def files(self) -> list[Path]:
        found: list[Path] = []
        for folder, folders, names in os.walk(self.root):
            folders[:] = sorted(f for f in folders if f not in _SKIPPED and not f.startswith("."))
            scripts = [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
            found += [file for file in scripts if file.is_file()]
            if len(found) > _MOST_FILES:
                raise UserError(f"{self.root} has more than {_MOST_FILES:,} Python files; pass a part of it.")
        return found

    def module(self, file: Path) -> str:
        """A file's dotted name, from the root."""
        try:
            parts = list(file.resolve().relative_to(self.root).with_suffix("").parts)
        except ValueError:
            return file.stem
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def top(self, file: Path) -> Path:
        """The folder that must be importable for a file's relative imports: that above its outermost package."""
        folder = file.resolve().parent
        if not (folder / "__init__.py").exists():
            return self.root
        while (folder / "__init__.py").exists() and folder.parent != folder:
            folder = folder.parent
        return folder

    def package(self, file: Path) -> str:
        """The package that a file's relative imports start from."""
        try:
            return ".".join(file.resolve().parent.relative_to(self.top(file)).parts)
        except ValueError:
            return ""

    def find(self, module: str, near: Path | None = None) -> Path | None:
        """The file of a module, looked up beside the script first, as Python does."""
        folder = near.parent if near else None
        if (module, folder) not in self._found:
            self._found[module, folder] = self._find(module.split("."), folder)
        return self._found[module, folder]

    def _find(self, parts: list[str], near: Path | None) -> Path | None:
        folders = [near.resolve()] if near else []
        for folder in [*folders, self.root, self.root / "src"]:
            for file in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__init__.py")):
                if file.is_file():
                    return file
        return None

    def parse(self, file: Path) -> ast.Module | None:
        """A file's tree, or None when it is not Python that can be read."""
        if file not in self._parsed:
            try:
                with warnings.catch_warnings(action="ignore"):
                    self._parsed[file] = ast.parse(self.source(file))
            except (UserError, SyntaxError, ValueError, RecursionError, MemoryError):
                self._parsed[file] = None
            if len(self._parsed) > _TREES:
                self._parsed.popitem(last=False)
        self._parsed.move_to_end(file)
        return self._parsed[file]
