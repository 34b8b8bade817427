"""The index of a run's calls: complete, made anew, and fast over many calls."""

import json
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
import types
from collections import Counter
from pathlib import Path

import pytest

from genwright import Executor
from genwright.cli.inspect_runs import list_runs, show
from genwright.inspect.records.record_index import open_index
from genwright.inspect.records.stored_runs import StoredRun


def recorded(folder: Path, monkeypatch: pytest.MonkeyPatch, calls: int) -> tuple[StoredRun, list[float]]:
    """A run of small calls, and the processor's seconds per call of each hundred."""
    monkeypatch.setenv("GENWRIGHT_RECORDS", str(folder))
    border = types.ModuleType("border")
    border.small = lambda x, y: [x, y]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "border", border)
    executor = Executor("many")
    executor.setup(interfaces={"small": "border"})
    taken = []
    for start in range(0, calls, 100):
        before = time.process_time()
        for i in range(start, start + 100):
            executor.run("small", i, y="text")
        taken.append((time.process_time() - before) / 100)
    return StoredRun(executor.folder.path), taken


def processor_seconds(*arguments: str) -> float:
    """What a whole command takes of the processor, at best of three."""

    def used() -> float:
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        return spent.ru_utime + spent.ru_stime

    taken = []
    for _ in range(3):
        before = used()
        subprocess.run([sys.executable, "-m", "genwright", "inspect", *arguments], check=True, capture_output=True)
        taken.append(used() - before)
    return min(taken)


def test_the_index_has_what_the_records_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = recorded(tmp_path, monkeypatch, 100)
    with open_index(run) as index:
        rows = index.calls()
    assert [row["number"] for row in rows] == list(range(1, 101))
    for row, call in zip(rows, run.calls(), strict=True):
        assert all(row[name] == getattr(call, name) for name in row)
    # A record that is changed while it is not complete is read again; a database that is none is made anew in memory.
    path = run.call_files()[5]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "started"}))
    (run.path / "index.sqlite").unlink()
    with open_index(run) as index:
        assert Counter(row["status"] for row in index.calls()) == {"returned": 99, "started": 1}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "raised"}))
    with open_index(run) as index:
        assert Counter(row["status"] for row in index.calls()) == {"returned": 99, "raised": 1}
    (run.path / "index.sqlite").write_bytes(b"not a database" * 100)
    with open_index(run) as index:
        assert len(index.calls()) == 100
    # Nor is one that cannot take the rows, as on a full disk.
    (run.path / "index.sqlite").unlink()
    sqlite3.connect(run.path / "index.sqlite").execute("CREATE TABLE calls (number, status)")
    with open_index(run) as index:
        assert len(index.calls()) == 100


def test_many_calls_are_recorded_listed_and_shown_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], full_size: bool
) -> None:
    calls = 10_000 if full_size else 200
    run, taken = recorded(tmp_path, monkeypatch, calls)
    with open_index(run):
        pass  # as the command that runs a script does at its end
    list_runs(tmp_path)
    show(str(run.path), calls // 2)
    output = capsys.readouterr().out
    assert f"{calls} calls" in output and f'"number": {calls // 2}' in output
    show("last", None, tmp_path)
    assert f"and {calls - 100} more" in capsys.readouterr().out
    if full_size:
        seconds = [
            processor_seconds(*verb, "--records", str(tmp_path)) for verb in (["list"], ["show", "last", "5000"])
        ]
        print(f"{1000 * sum(taken) / len(taken):.2f} ms per call, list and show in {seconds} s", file=sys.stderr)
        assert sum(taken) / len(taken) < 0.002 and max(seconds) < 0.3
    shutil.rmtree(run.path)
