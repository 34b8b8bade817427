"""`genwright inspect run`, `list` and `show`: single scripts and batches, exit codes and JSON."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "tests" / "inspect" / "fixtures" / "project"
MANIFEST = PROJECT / "tinymodel.toml"
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(PROJECT)]), "GENWRIGHT_RUN": ""}


def inspect(*arguments: str | Path, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "genwright", "inspect", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    folder = tmp_path / "scripts"
    folder.mkdir()
    head = "from tinymodel import generate\n"
    (folder / "good.py").write_text(f"{head}print(generate('x', 1))\n")
    (folder / "bad.py").write_text(f"{head}generate('x')\nraise ValueError('no luck')\n")
    return folder


def test_a_run_is_echoed_recorded_listed_and_shown(scripts: Path, tmp_path: Path) -> None:
    # In the script's own folder, where the records then lie.
    done = inspect("run", "good.py", "--manifest", MANIFEST, cwd=scripts)
    assert done.stdout == "x!\n" and "tinymodel/simulation-0001: ended, 1 call," in done.stderr
    assert "tinymodel/simulation-0001  ended  1 call " in inspect("list", cwd=scripts).stdout
    shown = inspect("show", "last", cwd=scripts).stdout
    assert "  1  run generate  returned" in shown and "line 2" in shown
    call = json.loads(inspect("show", "tinymodel/simulation-0001", "1", cwd=scripts).stdout)
    assert call["keywords"] == {"prompt": "x", "max_new_tokens": 1} and call["result"] == "x!"
    data = json.loads(inspect("show", "last", "--json", cwd=scripts).stdout)
    assert data["status"] == "ended" and [c["interface"] for c in data["calls"]] == ["generate"]
    missing = inspect("show", "last", "7", cwd=scripts, code=1).stderr
    assert missing == "genwright: tinymodel/simulation-0001 has no record 7; its records are numbered 1 to 1.\n"
    assert "There is no run 'nothing'" in inspect("show", "nothing", cwd=scripts, code=1).stderr


def test_a_batch_goes_on_after_a_failure_and_is_resumed(scripts: Path, tmp_path: Path) -> None:
    command = ["run", scripts, "--manifest", MANIFEST, "--records", "records", "--json", "--resume"]
    done = inspect(*command, cwd=tmp_path, code=1)
    bad, good = json.loads(done.stdout)
    assert (
        bad["status"] == "failed" and bad["error"] == f"{scripts}/bad.py: failed with exit code 1: ValueError: no luck"
    )
    assert good["status"] == "ended" and "1 of 2 scripts failed" in done.stderr
    assert f"genwright: {bad['error']}" in done.stderr
    again: list[dict[str, Any]] = json.loads(inspect(*command, cwd=tmp_path, code=1).stdout)
    assert again[0]["status"] == "failed" and again[1]["skipped"]
    alone = ["run", scripts / "good.py", "--manifest", MANIFEST, "--records", "records", "--resume"]
    assert inspect(*alone, cwd=tmp_path).stderr == f"{scripts}/good.py: left out, because it already ran to its end\n"
    (scripts / "good.py").write_text((scripts / "good.py").read_text() + "# changed\n")
    assert "run" in json.loads(inspect(*command, cwd=tmp_path, code=1).stdout)[1]
    assert len(json.loads(inspect("list", "--records", tmp_path / "records", "--json", cwd=tmp_path).stdout)) == 5


def test_a_folder_of_scripts_does_not_include_their_records(scripts: Path, tmp_path: Path) -> None:
    (scripts / "plan.json").write_text("{}")  # of another tool
    for _ in range(2):
        inspect("run", ".", "--manifest", MANIFEST, cwd=scripts, code=1)  # bad.py fails
    listed = json.loads(inspect("list", "--json", cwd=scripts).stdout)
    assert len(listed) == 2 * len([*scripts.glob("*.py")])


def test_limits_and_assertions_of_a_scenario_end_in_a_sentence(scripts: Path, tmp_path: Path) -> None:
    scenario = tmp_path / "s.toml"
    command = ["run", scripts / "good.py", "--manifest", MANIFEST, "--scenario", scenario, "--rewrite"]
    scenario.write_text("assertions = [\"count('generate') == 2\"]\n")
    done = inspect(*command, cwd=tmp_path, code=1)
    assert "the assertion `count('generate') == 2` does not hold" in done.stderr and "Traceback" not in done.stderr
    (scripts / "good.py").write_text("from tinymodel import generate\nwhile True: generate('x')\n")
    scenario.write_text("[limits]\ncalls = 3\n")
    assert "good.py: The run was ended at its limit calls = 3.\n" in inspect(*command, cwd=tmp_path, code=1).stderr
    scenario.write_text("dropin = 'nothing'\n")
    assert "There is no drop-in 'nothing'" in inspect(*command, cwd=tmp_path, code=1).stderr


def test_a_script_without_network_is_told_how_to_get_it(scripts: Path, tmp_path: Path) -> None:
    call = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"
    (scripts / "good.py").write_text(f"from tinymodel import generate\ngenerate('x')\n{call}\n")
    told = inspect("run", scripts / "good.py", "--manifest", MANIFEST, cwd=tmp_path, code=1).stderr
    assert "Network is unreachable (a run has no network unless you pass --network)\n" in told


def test_an_interrupted_run_has_a_complete_record(scripts: Path, tmp_path: Path) -> None:
    body = "open('written.txt', 'w').write('x')\nprint(generate('x', 1), flush=True)\nimport time; time.sleep(60)\n"
    (scripts / "good.py").write_text(f"from tinymodel import generate\n{body}")
    command = [sys.executable, "-m", "genwright", "inspect", "run", "scripts/good.py", "--manifest", str(MANIFEST)]
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=-1, stderr=-1, text=True) as started:
        assert started.stdout is not None and started.stderr is not None
        assert started.stdout.readline() == "x!\n"
        started.send_signal(signal.SIGINT)
        assert started.wait() == 130 and "`genwright inspect show last` tells" in started.stderr.read()
    shown = json.loads(inspect("show", "last", "--json", cwd=tmp_path).stdout)
    assert shown["status"] == "killed" and shown["message"] == "The run was interrupted." and shown["seconds"] > 0
    assert [call["status"] for call in shown["calls"]] == ["returned"]
    assert [file["path"] for file in shown["files"]] == ["work/written.txt"]


def test_a_script_that_is_no_regular_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "fifo.py")
    for name in ("zero.py", "fifo.py"):
        said = inspect("run", name, cwd=tmp_path, code=1).stderr
        assert said == f"genwright: The script {name} is not a regular file.\n"


def test_wrong_options_are_one_sentence(scripts: Path, tmp_path: Path) -> None:
    def said(*arguments: str | Path) -> str:
        return inspect("run", scripts / "good.py", *arguments, cwd=tmp_path, code=1).stderr

    assert said("--mock", "--rewrite") == "genwright: Pass only one of --rewrite and --mock.\n"
    assert said("--read", "nothing") == "genwright: --read must be a file or folder, and there is no nothing.\n"
    assert inspect("list", cwd=tmp_path).stderr == f"There is no run in {tmp_path}/records.\n"


def test_a_run_is_repeated_as_long_as_its_assertions_do_not_hold(scripts: Path, tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text("assertions = [\"count('generate') == 2\"]")
    command = ("run", scripts / "good.py", "--manifest", MANIFEST, "--scenario", "two.toml", "--resume")
    for number in (1, 2):
        assert f"tinymodel/simulation-000{number}: ended" in inspect(*command, cwd=tmp_path, code=1).stderr


def test_an_exception_of_several_lines_is_told_by_its_first(scripts: Path, tmp_path: Path) -> None:
    (scripts / "good.py").write_text(
        "from tinymodel import generate\ngenerate('x')\nraise TypeError('odd\\n  given: 1')\n"
    )
    told = inspect("run", scripts / "good.py", "--manifest", MANIFEST, cwd=tmp_path, code=1).stderr
    assert told.endswith("good.py: failed with exit code 1: TypeError: odd\n")


def test_a_run_that_never_reached_its_model_for_want_of_answers_is_no_success(scripts: Path, tmp_path: Path) -> None:
    script, scenario = scripts / "good.py", tmp_path / "s.toml"
    others = [
        "import sys\nfor line in sys.stdin:\n    generate(line)\n",
        "import sys\nwhile True:\n    if line := sys.stdin.readline().strip():\n        generate(line)\n",
        "import sys\nfor line in sys.stdin.read().splitlines():\n    generate(line)\n",
        "import sys\ntry:\n    generate(input())\nexcept EOFError:\n    sys.exit(3)\n",
    ]
    for source in others:
        script.write_text(f"from tinymodel import generate\n{source}")
        told = inspect("run", script, "--manifest", MANIFEST, "--records", "others", cwd=tmp_path, code=1).stderr
        assert "unanswered, 0 calls," in told and "has no answer for the input in line" in told
    own = "import sys\nsys.stdin.read()\nraise ValueError('of its own')\ngenerate('x')\n"
    script.write_text(f"from tinymodel import generate\n{own}")
    told = inspect("run", script, "--manifest", MANIFEST, "--records", "others", cwd=tmp_path, code=1).stderr
    assert "failed with exit code 1: ValueError: of its own" in told
    script.write_text("from tinymodel import generate\nname = input('Name: ')\ngenerate(name)\n")
    done = inspect("run", script, "--manifest", MANIFEST, cwd=tmp_path, code=1)
    assert "tinymodel/simulation-0001: unanswered, 0 calls," in done.stderr
    told = "No call of the model was recorded, because the scenario has no answer for the input in line 2;"
    assert (
        f'genwright: {script}: {told} pass --scenario with a file that has one, as in answers = ["yes"].' in done.stderr
    )
    scenario.write_text('answers = ["Ann"]\n')
    done = inspect("run", script, "--manifest", MANIFEST, "--scenario", scenario, cwd=tmp_path)
    assert "tinymodel/simulation-0002: ended, 1 call," in done.stderr
