"""Write the tables of architecture.md anew: each module's sentence is the first of its docstring.

Run in the repository's root: `python docs/module_table.py`.
"""

import ast
import re
from pathlib import Path

PAGE, PACKAGE = Path("docs/architecture.md"), Path("genwright")
START, END = "<!-- modules -->\n", "<!-- end of modules -->\n"


def sentence(path: Path) -> str:
    """The first sentence of a module's docstring."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[a-z0-9)`\"]{2}\.) (?=[A-Z`])", text)[0].rstrip(".").replace("|", "\\|")


def tables() -> str:
    """One table for each folder."""
    lines = []
    for folder in (PACKAGE, *sorted(path for path in PACKAGE.rglob("*") if (path / "__init__.py").exists())):
        modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
        about = sentence(folder / "__init__.py")
        lines += ["", f"**`{folder.as_posix()}/`** {about}.", "", "| module | |", "| --- | --- |"] if modules else []
        lines += [f"| `{path.relative_to(PACKAGE).as_posix()}` | {sentence(path)} |" for path in modules]
    return "\n".join(lines[1:]) + "\n"


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(START)
    PAGE.write_text(before + START + "\n" + tables() + "\n" + END + rest.partition(END)[2], encoding="utf-8")
