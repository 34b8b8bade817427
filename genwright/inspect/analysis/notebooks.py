"""Jupyter notebooks as Python: code cells joined, magics kept as comments."""

import ast
import json
import re
import warnings

from genwright.errors import UserError

_MAGIC = re.compile(r"(\s*)([%!?].*|[\w.]+\?{1,2}\s*)$")
_ASSIGNED_MAGIC = re.compile(r"(\s*)([\w., ]+?)\s*=\s*([%!].*)$")
_PYTHON_MAGICS = frozenset({"time", "timeit", "capture", "prun", "python", "python3"})  # their cells are still Python


def notebook_source(text: str, name: str) -> str:
    """The code cells of a notebook as one script; `name` is for errors."""
    try:
        notebook = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"The notebook {name} is not valid JSON: {error}.") from error
    sheets = notebook.get("worksheets") if isinstance(notebook, dict) else None
    holder = sheets[0] if isinstance(sheets, list) and sheets else notebook  # notebooks of version 3 have worksheets
    cells = holder.get("cells") if isinstance(holder, dict) else None
    if not isinstance(cells, list):
        raise UserError(f"The notebook {name} has no list of cells.")
    parts: list[str] = []
    for number, cell in enumerate(cells, 1):
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            parts.append(f"# cell {number}\n{_python(_text(cell))}\n")
    if not parts:
        raise UserError(f"The notebook {name} has no code cell.")
    return "\n".join(parts)


def _text(cell: dict[str, object]) -> str:
    source = cell.get("source", cell.get("input", ""))
    lines = source if isinstance(source, list) else [source]
    return "".join(line for line in lines if isinstance(line, str)).strip("\n")


def _python(cell: str) -> str:
    """A cell whose magics are comments; one in another language is a comment as a whole."""
    lines = cell.splitlines()
    first = next((line for line in lines if line.strip()), "")
    if first.startswith("%%"):
        language = first[2:].split()[:1]
        if not language or language[0] not in _PYTHON_MAGICS:
            return "\n".join(f"# magic: {line}" for line in lines)
    # A line of a multi-line expression may begin with % too, so a cell that is Python stays as it is.
    return cell if _parses(cell) else "\n".join(map(_without_magic, lines))


def _without_magic(line: str) -> str:
    if line.startswith("%%"):
        return f"# magic: {line}"
    if match := _MAGIC.match(line):
        return f"{match[1]}pass  # magic: {match[2]}"
    if match := _ASSIGNED_MAGIC.match(line):
        return f"{match[1]}{match[2]} = None  # magic: {match[3]}"
    return line


def _parses(cell: str) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(cell)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
