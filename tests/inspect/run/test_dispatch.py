"""What names mean in a running script."""

from pathlib import Path

import pytest

from genwright.inspect.run.dispatch import Dispatch


def test_a_function_is_not_taken_for_the_module_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "packed_model"
    package.mkdir()
    (package / "__init__.py").write_text("from packed_model.transcribe import transcribe\n")
    (package / "transcribe.py").write_text("def transcribe(x):\n    return x + 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = Dispatch("p", lambda name, places: None)
    names.homes = {"transcribe": "packed_model"}
    assert names.resolve("transcribe")(1) == 2
