"""Each test is a run of its own."""

import pytest


@pytest.fixture(autouse=True)
def no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor tells the processes that this one starts which run they are part of; no other test is."""
    monkeypatch.setenv("GENWRIGHT_RUN", "")
