"""There is no kernel if C++ cannot be compiled; if several processes need one, one of them compiles it."""

import subprocess
import sys
import warnings

import pytest

from genwright.errors import GenwrightWarning
from genwright.kernels.cpu.build import build
from genwright.kernels.cpu.fused_linear import kernel


def test_no_kernel_without_a_working_compiler_and_a_writable_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "false")
    monkeypatch.setattr("shutil.which", lambda name: name if name == "false" else None)
    with pytest.warns(GenwrightWarning, match="Compiler false failed on fused_linear.cpp"):
        assert build(tmp_path / "broken", "fused_linear") is None
    assert not [path for path in (tmp_path / "broken").iterdir() if path.name != "lock"], "nothing is left behind"
    monkeypatch.setattr("shutil.which", lambda name: None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        assert build(tmp_path / "none", "fused_linear") is None
        assert build(tmp_path / "none", "attention") is None
    (warning,) = caught  # once per process, not once per kernel
    assert "No C++ compiler" in str(warning.message) and "times as long" in str(warning.message)
    (tmp_path / "file").touch()
    monkeypatch.undo()
    with pytest.warns(GenwrightWarning, match="file cannot be written"):
        assert build(tmp_path / "file", "fused_linear") is None


@pytest.mark.skipif(kernel() is None, reason="no C++ compiler")
def test_a_person_at_a_terminal_is_told_once_that_kernels_are_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            assert build(tmp_path, "rows") and build(tmp_path, "calls")
    assert [str(warning.message)[:17] for warning in caught] == ["Compiling kernels"]


@pytest.mark.skipif(kernel() is None, reason="no C++ compiler")
def test_concurrent_processes_compile_once(tmp_path):
    """Two processes with an empty folder get the same file."""
    imports = "import sys; from pathlib import Path; from genwright.kernels.cpu.build import build"
    code = f"{imports}; print(build(Path(sys.argv[1]), 'attention', FORMAT='Float32', DIM=64, PAGE=16).name)"
    command = [sys.executable, "-c", code, str(tmp_path)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {run.communicate()[0].strip() for run in runs}
    assert len(paths) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"lock", *paths}
