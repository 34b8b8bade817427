"""`genwright plan` as a user meets it."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from placement.profiles import GB, H200, LAPTOP, OPT_13B
from terminal import run

from genwright.cli.plan import app, bar, picture, sentences, to_json
from genwright.errors import UserError
from genwright.placement.footprint import Workload
from genwright.placement.machine import _key, _mount_point
from genwright.placement.planner import Budgets, plan
from genwright.placement.policy import Policy

TINY = ("random:stories15m", "--device", "cpu", "--prompt-length", "16", "--max-new-tokens", "8", "--batch", "2")
SMALL = ("--dtype", "float32", "--cpu-mem", "90MB")  # of about 98 MB of weights


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home where this machine has been measured, as if it were LAPTOP."""
    monkeypatch.setenv("GENWRIGHT_HOME", str(tmp_path))
    path = tmp_path / "machines" / f"{_key(torch.device('cpu'), torch.float32)}.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"rates": asdict(LAPTOP.rates), "disks": {_mount_point(tmp_path): asdict(LAPTOP.disk)}}))
    return tmp_path


def test_a_model_that_fits_is_told_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app([*TINY, "--dtype", "float32", "--cpu-mem", "0.2"], standalone_mode=False)
    shown, told = capsys.readouterr()
    lines = shown.splitlines()
    assert not told  # the machine is known
    assert lines[0] == "The model fits: it runs resident, with 2 sequences at a time."
    assert lines[1].startswith("Prediction for 2 sequences, 16+8 tokens: prefill ")
    assert lines[4].startswith("memory W") and len(lines) == 5


def test_what_does_not_fit_goes_to_disk_and_json_says_the_same(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app([*TINY, *SMALL, "--disk", str(home / "disk"), "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    policy = Policy.parse(found["offload"])
    assert not found["resident"] and policy == Policy(**found["policy"])
    assert found["budgets"]["cpu"] == 90_000_000 and found["bytes"]["disk"]["weights"] > 0
    assert sum(found["bytes"]["gpu"].values()) <= 90_000_000
    assert found["prediction"]["sequences"] == policy.batch == 2
    assert found["prediction"]["total_rate"] > 0 and found["machine"]["disk"] == asdict(LAPTOP.disk)


def test_on_a_terminal_the_tiers_are_bars(home: Path) -> None:
    ended = run(sys.executable, "-m", "genwright", "plan", *TINY, *SMALL, cwd=Path(__file__).parents[2])
    assert ended.code == 0
    assert "Policy: weights " in ended.output and "--offload " in ended.output
    assert "memory █" in ended.output and "░" in ended.output and "disk   " in ended.output
    assert "Limits: " in ended.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*TINY, "--cpu-mem", "lots"], "cpu_mem must be a size such as 16GiB"),
        ([*TINY, "--quant", "int5"], "Weight format 'int5' is unknown"),
        ([*TINY, "--kv", "int5"], "kv must be one of"),
        (["random:nonsense"], "There is no model shape"),
        ([*TINY, "--dtype", "float32", "--prompt-length", "999"], "need a context of 1,007, but the model's is 256"),
        ([*TINY, "--dtype", "float32", "--cpu-mem", "30MB"], "have no room for them"),
        ([*TINY, "--dtype", "float32", "--disk", __file__], "/test_plan.py is not a folder"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, list) else "",
)
def test_mistakes_are_one_sentence(arguments: list[str], words: str, home: Path) -> None:
    with pytest.raises(UserError, match=words):
        app(arguments, standalone_mode=False)


def test_a_plan_for_a_gpu_in_words_and_letters() -> None:
    budgets = Budgets(16 * GB, 64 * GB, 0)
    found = plan(OPT_13B, H200, budgets, Workload(256, 32, 32))
    lines = list(sentences(found, H200))
    assert lines[0] == f"Policy: {found.policy.describe()}" and " GPU" in lines[0]
    assert lines[1].split() == ["--offload", str(found.policy)]
    limits = found.prediction.prefill_limit, found.prediction.decode_limit
    assert lines[3] == "Limits: {} for prefill, {} for decoding".format(*limits)
    tiers = {name: (parts, budget) for name, parts, budget in picture(found, budgets, H200)}
    assert {name: budget for name, (_, budget) in tiers.items()} == {"GPU": 16 * GB, "CPU": 64 * GB}
    letters = bar(*tiers["GPU"], letters=True).plain
    assert len(letters) == 48 and letters == "".join(sorted(letters, key="WCAB.".index))
    assert letters.count("C") == pytest.approx(48 * tiers["GPU"][0]["cache"] / (16 * GB), abs=1)
    assert to_json(found, budgets, H200)["offload"] == str(found.policy)


def test_without_a_gpu_there_is_one_memory() -> None:
    found = plan(OPT_13B, LAPTOP, Budgets(0, 16 * GB, 99 * GB), Workload(16, 8, 1))
    names = [name for name, _, _ in picture(found, Budgets(0, 16 * GB, 99 * GB), LAPTOP)]
    assert names == ["memory", "disk"] and "GPU" not in next(sentences(found, LAPTOP))
