"""A module is changed once it has been imported."""

import sys
from pathlib import Path
from typing import Any

import pytest

from genwright.inspect.surroundings.import_hooks import after_import


def test_modules_are_changed_when_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "hooked_package").mkdir()
    (tmp_path / "hooked_package" / "__init__.py").write_text("from . import inner\nKNOWN = inner.VALUE\n")
    (tmp_path / "hooked_package" / "inner.py").write_text("VALUE = 1\n")

    def change(module: Any) -> None:
        module.VALUE += 1

    after_import({"hooked_package.inner": change, "no_such_module_at_all": change})
    import hooked_package  # type: ignore[import-not-found]

    assert hooked_package.KNOWN == hooked_package.inner.VALUE == 2
    after_import({"hooked_package.inner": change})
    assert hooked_package.inner.VALUE == 3
    with pytest.raises(ModuleNotFoundError):
        __import__("no_such_module_at_all")
