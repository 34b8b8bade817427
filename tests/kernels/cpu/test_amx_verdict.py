"""AMX is used only if a trial in a child process found it right and faster; the verdict is kept."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from genwright.kernels.cpu import amx_verdict, build
from genwright.kernels.cpu.amx_verdict import amx_is_faster, trial

RIGHT = {"equal": True, "vnni": 2e-3, "amx": 1e-3}
SIGILL = "import os, signal\nos.kill(os.getpid(), signal.SIGILL)"
KIND = 8, False, "FLOATS", False, 32


def report(**other: float) -> str:
    """The program of a child that reports RIGHT but for some values."""
    return f"print({json.dumps(json.dumps(RIGHT | other))})"


@pytest.mark.parametrize(
    ("child", "faster", "why"),
    [
        (report(), True, None),
        (report(equal=False), False, None),
        (report(amx=2e-3), False, None),
        (SIGILL, False, "SIGILL"),
        ("raise SystemExit(1)", False, "exit status 1"),
        ("import time\ntime.sleep(600)", False, "timed out"),
        ("print('{')", False, "Expecting"),
        ("", False, "Expecting"),
    ],
    ids=["right and faster", "wrong", "slower", "crash", "error", "hang", "half a report", "no report"],
)
def test_a_childs_report_or_end_decides(child, faster, why, monkeypatch) -> None:
    monkeypatch.setattr(amx_verdict, "TRIAL", (sys.executable, "-S", "-c", child))
    if "sleep" in child:
        monkeypatch.setattr(amx_verdict, "SECONDS", 0.2)
    found = trial("kernel.so", *KIND)
    assert found["faster"] is faster
    assert why in found["why"] if why else found["vnni"] == RIGHT["vnni"]


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """A processor with AMX, on which trials find AMX faster: the libraries tried."""
    tried: list[str] = []
    monkeypatch.setenv("GENWRIGHT_HOME", str(tmp_path))
    (tmp_path / "kernels").mkdir()  # as building a kernel does
    monkeypatch.setattr(amx_verdict, "has_amx_int8", lambda: True)
    monkeypatch.setattr(amx_verdict, "cpu_model", lambda: "A processor")
    monkeypatch.setattr(amx_verdict, "trial", lambda library, *kind: tried.append(library) or {"faster": True})
    amx_is_faster.cache_clear()
    yield tried
    amx_is_faster.cache_clear()


def asked_anew(library: str = "tile_linear-1.so") -> bool:
    """The answer to another process."""
    amx_is_faster.cache_clear()
    return amx_is_faster(library, *KIND)


def test_the_verdict_is_kept(trials, tmp_path) -> None:
    assert asked_anew() and asked_anew()
    assert len(trials) == 1
    (kept,) = tmp_path.rglob("*.json")
    assert json.loads(kept.read_text()) == {"processor": "A processor", "kind": [*KIND], "faster": True}
    kept.write_text('{"faster": false}')
    assert not asked_anew() and len(trials) == 1
    kept.write_text("[")
    assert asked_anew() and len(trials) == 2


def test_another_kernel_or_processor_is_tried_again(trials, monkeypatch) -> None:
    assert asked_anew() and asked_anew("tile_linear-2.so")
    assert trials == ["tile_linear-1.so", "tile_linear-2.so"]
    monkeypatch.setattr(amx_verdict, "cpu_model", lambda: "Another processor")
    monkeypatch.setattr(amx_verdict, "trial", lambda *_: {"faster": False})
    assert not asked_anew()


def test_a_changed_source_changes_the_librarys_name(tmp_path, monkeypatch) -> None:
    """On which a verdict depends."""
    names = []
    (tmp_path / "tile_linear.cpp").touch()
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    for text in ("// One version", "// Another"):
        (tmp_path / "amx.h").write_text(text)
        path = build.build(tmp_path / "kernels", "tile_linear")
        names.append(path and path.name)
    assert names[0] != names[1] or names == [None, None]  # no compiler


def test_there_is_no_trial_without_amx(trials, monkeypatch) -> None:
    monkeypatch.setattr(amx_verdict, "has_amx_int8", lambda: False)
    assert not asked_anew() and not trials


def test_there_is_no_trial_if_its_verdict_cannot_be_kept(trials, tmp_path) -> None:
    (tmp_path / "kernels").rmdir()
    assert not asked_anew() and not trials


def test_a_child_that_cannot_be_started_is_no_verdict(trials, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(amx_verdict, "trial", trial)
    monkeypatch.setattr(amx_verdict, "TRIAL", (str(tmp_path / "missing"),))
    assert not asked_anew() and not list(tmp_path.rglob("*.json"))
