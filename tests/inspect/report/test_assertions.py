"""Assertions are computed from a run's record, and nothing that they say is executed."""

from pathlib import Path

import pytest
from recorded_runs import write_run

from genwright.inspect.report.assertions import Outcome, check_assertions

CALLS = [
    {"interface": "Model", "event": "create", "line": 2, "keywords": {"path": "w.bin"}},
    {"interface": "Model.generate", "line": 3, "arguments": ["a"], "result": {"shape": [1, 3], "mean": 0.5}},
    {"interface": "Model.generate", "line": 4, "arguments": ["b"], "result": "text", "seconds": 0.5},
]


def check(tmp_path: Path, *assertions: str) -> list[Outcome]:
    run = write_run(tmp_path / "run", CALLS, scenario={"assertions": list(assertions)}, seconds=2.5)
    (run.path / "output.txt").write_text("done: 3 files\n")
    return check_assertions(run, ["NaN"])


@pytest.mark.parametrize(
    "assertion",
    [
        "status == 'ended' and exit_code == 0",
        "count('generate') == count('Model.generate') == 2",
        "results('generate')[0].shape == [1, 3]",
        "isclose(results('generate')[0].mean, 0.5)",
        "'done' in output and seconds < 10",
        "all(call.status == 'returned' for call in calls)",
        "arguments('generate')[1][0] == 'b'",
        "arguments('Model')[0].path == 'w.bin'",
        "'memory growth' not in findings",
        "max([c.seconds for c in calls if c.seconds is not None]) <= 0.5",
    ],
)
def test_assertions_that_hold(assertion: str, tmp_path: Path) -> None:
    (outcome,) = check(tmp_path, assertion)
    assert outcome.holds, outcome.reason


@pytest.mark.parametrize(
    ("assertion", "reason"),
    [
        ("count('generate') == 3", "count('generate') is 2."),
        ("not findings", "findings is ['NaN']."),
        ("status == 'ended' and seconds < 1", "seconds < 1 does not hold. seconds is 2.5."),
        ("calls[9].status == 'x'", "It cannot be computed: IndexError"),
        ("__import__('os')", "There is no '__import__'"),
        ("''.join(['a'])", "An assertion cannot have"),
        ("output.__class__", "It cannot be computed"),
        ("len('x' * 99999999999) > 1", "Only numbers"),
        ("'%999999999d' % 1 == ''", "Only numbers"),
        ("len([1 for a in output for b in output for c in output for d in output for e in output]) == 0", "steps"),
        ("1 +", "It is not a Python expression"),
        ("(lambda: 1)()", "An assertion cannot have"),
    ],
)
def test_assertions_that_do_not(assertion: str, reason: str, tmp_path: Path) -> None:
    (outcome,) = check(tmp_path, assertion)
    assert not outcome.holds and reason in outcome.reason
