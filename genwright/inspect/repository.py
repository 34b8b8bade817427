"""A script's place in its repository: root, dotted names, and other modules' sources."""

import ast
import os
from functools import cached_property
from pathlib import Path

from genwright.errors import UserError

_MARKS = (".git", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")
_SKIPPED = {"venv", "env", "node_modules", "build", "dist", "site-packages", "third_party", "__pycache__"}
_LARGEST = 2_000_000


def read_source(path: Path) -> str:
    """A script's text, or one sentence why not."""
    try:
        if path.stat().st_size > _LARGEST:
            raise UserError(f"{path} has more than {_LARGEST:,} bytes; that is no script written by hand.")
        # Line ends stay as they are, so that untouched lines do too.
        with path.open(encoding="utf-8-sig", newline="") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the script {path} cannot be read: {error}.") from error


class Repository:
    """The tree of Python files around a script; parsed only when asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._parsed: dict[Path, ast.Module | None] = {}

    @classmethod
    def around(cls, script: Path) -> "Repository":
        """The nearest folder above that looks like a repository's root, else the script's own folder."""
        folder = script.resolve().parent
        for candidate in [folder, *folder.parents]:
            if any((candidate / mark).exists() for mark in _MARKS):
                return cls(candidate)
        return cls(folder)

    @cached_property
    def files(self) -> list[Path]:
        found: list[Path] = []
        for folder, folders, names in os.walk(self.root):
            folders[:] = sorted(f for f in folders if f not in _SKIPPED and not f.startswith("."))
            found += [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
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
        parts = module.split(".")
        folders = [near.resolve().parent] if near else []
        for folder in [*folders, self.root, self.root / "src"]:
            for file in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__init__.py")):
                if parts and file.is_file():
                    return file
        return None

    def parse(self, file: Path) -> ast.Module | None:
        """A file's tree, or None when it is not Python that can be read."""
        if file not in self._parsed:
            try:
                self._parsed[file] = ast.parse(read_source(file))
            except (UserError, SyntaxError, ValueError, RecursionError):
                self._parsed[file] = None
        return self._parsed[file]
