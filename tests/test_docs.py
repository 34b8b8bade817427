"""The documentation names files that exist, and docs/architecture.md names every module."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")))
FILE = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|cpp|h|cu|cuh|md)|[\w]+\.py)`")


@pytest.mark.parametrize("name", ["architecture.md", "decisions.md", "gpu.md"])
def test_every_file_that_is_named_exists(name: str) -> None:
    found = FILE.findall((ROOT / "docs" / name).read_text(encoding="utf-8"))
    assert found
    missing = [path for path in found if not ((ROOT / "genwright" / path).exists() or (ROOT / path).exists())]
    assert not missing


def test_every_module_has_its_line() -> None:
    """`python docs/module_table.py` writes them."""
    named = set(FILE.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")))
    modules = {path.relative_to(ROOT / "genwright").as_posix() for path in (ROOT / "genwright").rglob("*.py")}
    assert not {path for path in modules if not path.endswith("__init__.py")} - named


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    assert not [link for link in links if "://" not in link and not (page.parent / link).exists()]


def test_scaling_has_the_rows_that_its_script_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    script = importlib.import_module("benchmarks.scaling")
    monkeypatch.setattr(script, "SHAPES", {shape: script.SHAPES[shape] for shape in ("llama-3.1-8b", "mixtral-8x22b")})
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8").splitlines()
    assert not [row for row in script.gpus_needed() if row not in page]
