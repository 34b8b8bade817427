"""Ranks that are started here: one that ends is named, with the reason."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from genwright.errors import UserError
from genwright.parallel.launch import LOST_ANOTHER, Children, loopback

MODULES = {
    "waits": "import time; time.sleep(60)",
    "fails": "raise SystemExit(4)",
    "follows": f"raise SystemExit({LOST_ANOTHER})",
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield


def ended(children: Children) -> str:
    for _ in range(600):
        if sentence := children.ended():
            return sentence
        time.sleep(0.05)
    raise AssertionError("no rank has ended")


def test_a_rank_that_fails_is_named(modules: None) -> None:
    children = Children("fails", 2, 1, 1)
    assert ended(children) == "Rank 1 ended with exit status 4, so all ranks have ended."
    with pytest.raises(UserError, match="Rank 1 ended with exit status 4"):
        children.check()


def test_a_killed_rank_is_named_with_its_signal(modules: None) -> None:
    children = Children("waits", 3, 1, 1)
    assert children.ended() is None
    os.kill(children.pid(2), signal.SIGKILL)
    assert ended(children) == "Rank 2 was killed by SIGKILL, so all ranks have ended."
    children.end()


def test_localhost_has_an_interface() -> None:
    assert loopback().startswith("lo")
