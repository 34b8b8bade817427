"""How a package's installer starts a script: the function that its metadata names as a command."""

import ast
import re
from pathlib import Path

from genwright.errors import UserError
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.source_files import read_data
from genwright.inspect.analysis.syntax import Function, is_main_guard

_METADATA = ("pyproject.toml", "setup.cfg", "setup.py")
# `llm = "llm.cli:cli"` in pyproject.toml, `llm = llm.cli:cli` in the others.
_COMMAND = re.compile(r"[\w.-]+[\"']?\s*=\s*[\"']?([A-Za-z_][\w.]*):([A-Za-z_]\w*)\b")


def console_command(repository: Repository, script: Path, tree: ast.Module) -> str:
    """The call by which a script that only defines its command is started once it is installed, or ""."""
    functions = {n.name for n in tree.body if isinstance(n, Function)}
    for node in tree.body:
        if is_main_guard(node):
            return ""
        called = getattr(node.value, "func", None) if isinstance(node, ast.Expr) else None
        if isinstance(called, ast.Name) and called.id in functions:
            return ""
    module = f".{repository.module(script)}"
    for name in _METADATA:
        path = repository.root / name
        try:
            text = read_data(path, "metadata") if path.is_file() else ""
        except UserError:
            continue
        for named, function in _COMMAND.findall(text):
            if function in functions and module.endswith(f".{named}"):
                return f"{function}()"
    return ""
