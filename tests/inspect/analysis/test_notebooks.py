"""Notebooks are read as the Python of their cells, never as JSON."""

import ast
import json
from pathlib import Path

import pytest

from genwright.errors import UserError
from genwright.inspect.analysis.notebooks import notebook_source
from genwright.inspect.analysis.source_files import read_script


def notebook(*cells: str | list[str], kind: str = "code") -> str:
    return json.dumps({"nbformat": 4, "cells": [{"cell_type": kind, "source": cell} for cell in cells]})


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (["a = 1\n", "b = 2"], "a = 1\nb = 2"),
        ("%matplotlib inline\nx = 1", "pass  # magic: %matplotlib inline\nx = 1"),
        ("if y:\n    !pip install z", "if y:\n    pass  # magic: !pip install z"),
        ("files = !ls", "files = None  # magic: !ls"),
        ("%%time\nf()", "# magic: %%time\nf()"),
        ("%%bash\nls -l", "# magic: %%bash\n# magic: ls -l"),
        ("model.generate?", "pass  # magic: model.generate?"),
        ("t = ('a%d'\n% 3)", "t = ('a%d'\n% 3)"),
    ],
)
def test_cells(cell: str | list[str], expected: str) -> None:
    source = notebook_source(notebook(cell), "n.ipynb")
    assert source == f"# cell 1\n{expected}\n"
    ast.parse(source)


def test_text_cells_are_left_out_and_code_is_joined() -> None:
    data = json.loads(notebook("a = 1", "b = 2"))
    data["cells"].insert(1, {"cell_type": "markdown", "source": "# Title"})
    assert notebook_source(json.dumps(data), "n") == "# cell 1\na = 1\n\n# cell 3\nb = 2\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not valid JSON"),
        ("[]", "no list of cells"),
        ("{}", "no list of cells"),
        ('{"cells": [3]}', "no code cell"),
    ],
)
def test_what_is_no_notebook_is_one_sentence(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "n.ipynb"
    path.write_text(text)
    with pytest.raises(UserError, match=told):
        read_script(path)
