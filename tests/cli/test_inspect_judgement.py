"""The verbs that judge recorded runs, from the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import record_run, write_run
from typer.testing import CliRunner

from genwright.cli.inspect import app
from genwright.errors import UserError

SOURCE = """
import random
from themodel import generate
first = generate("a")
generate(first + str(random.random()))
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GENWRIGHT_RECORDS", str(tmp_path))
    for number in (1, 2):
        record_run(tmp_path / "demo" / f"pre-000{number}", SOURCE, {"generate": lambda text: text + "!"})
    return tmp_path


def run(*words: str) -> Any:
    return CliRunner().invoke(app, words)


def test_diff_exits_with_1_and_names_the_line(root: Path) -> None:
    differs = run("diff", "demo/pre-0001", "demo/pre-0002")
    assert differs.exit_code == 1 and differs.stdout.startswith("line 5: call 2 (generate): arguments[0]")
    assert run("diff", "demo/pre-0001", "demo/pre-0001").exit_code == 0
    told = json.loads(run("diff", "demo/pre-0001", "demo/pre-0002", "--json").stdout)
    assert told["differences"][0]["line"] == 5


def test_report_writes_a_page_and_junit(root: Path) -> None:
    done = run("report", "demo/pre-0001", "--junit", str(root / "junit.xml"))
    assert done.exit_code == 0 and "line 5: unseeded randomness" in done.stdout
    assert "<svg" in (root / "demo/pre-0001/report.html").read_text() and (root / "junit.xml").exists()


def test_report_exits_with_1_where_an_assertion_fails(root: Path) -> None:
    write_run(root / "demo" / "bad-0001", [], scenario={"assertions": ["count('f') == 1"]})
    done = run("report", "demo/bad-0001", "--out", str(root / "page.html"))
    assert done.exit_code == 1 and isinstance(done.exception, UserError) and (root / "page.html").exists()


def test_a_commentator_that_is_not_there_does_not_matter(root: Path) -> None:
    done = run("report", "demo/pre-0001", "--commentator", "http://127.0.0.1:9")
    assert done.exit_code == 0 and "gave no comment" in done.stderr


def test_slice_writes_a_file(root: Path) -> None:
    done = run("slice", "demo/pre-0001", "1", "--out", str(root / "slice.py"))
    assert done.exit_code == 0 and "1 of 4 statements" in done.stderr
    assert "sliced(4, 'generate', 'a')" in (root / "slice.py").read_text()
    refused = run("slice", "demo/pre-0001", "2")
    assert refused.exit_code == 1 and "no record holds" in str(refused.exception)


def test_only_a_planned_run_is_replayed(root: Path) -> None:
    assert "not started by `genwright inspect run`" in str(run("replay", "demo/pre-0001").exception)


def test_a_replay_that_is_refused_is_one_sentence(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = write_run(root / "demo" / "pre-0003", [], status="refused", message="Line 6 trains the model.")
    monkeypatch.setattr("genwright.inspect.run.launch.relaunch", lambda *args, **kwargs: again)
    for options, done in (((), "replayed"), (("--mock",), "mocked")):
        refused = run("replay", "demo/pre-0001", *options)
        assert refused.exit_code == 1 and refused.stdout == ""
        assert str(refused.exception) == f"demo/pre-0001 cannot be {done}: Line 6 trains the model."
