"""Ranks that are started here: one that never arrives, or fails before it does, ends the others with one sentence."""

from pathlib import Path

import psutil
import pytest

from genwright.errors import UserError
from genwright.parallel import rendezvous
from genwright.parallel.ranks import meet

MODULES = {"waits": "import time; time.sleep(100)", "fails": "import sys; raise SystemExit(len(sys.argv) + 2)"}


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("RANK", raising=False)


def test_a_rank_that_never_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real limit is 45 s; `test_worker.py` waits for it at full size."""
    monkeypatch.setattr(rendezvous, "ARRIVAL", 1.0)
    with pytest.raises(UserError, match=r"^Rank 1, 2 of 3 did not start within 1\.0 s\.$"):
        meet(3, "waits", 1)
    assert not [child for child in psutil.Process().children() if "waits" in child.cmdline()]


def test_a_rank_that_fails_before_it_arrives() -> None:
    with pytest.raises(UserError, match=r"^Rank 1 ended with exit status 5, so all ranks have ended\.$"):
        meet(2, "fails", 1, ["two", "arguments"])
