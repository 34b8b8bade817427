"""The defects of the research system, each as a test of ours; and what a run's own record tells."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_cases import PROJECT, ROOT
from recorded_scripts import errors, record

from genwright import Executor
from genwright.inspect.records.records import RecordFolder
from genwright.inspect.records.research_layout import write_research_layout
from genwright.inspect.records.stored_runs import StoredRun, open_run
from genwright.inspect.records.stored_values import load_value

HERE = sys.modules[__name__]
PATH = os.pathsep.join([str(ROOT), str(PROJECT)])


@pytest.fixture
def exe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Executor:
    monkeypatch.setenv("GENWRIGHT_RECORDS", str(tmp_path / "records"))
    monkeypatch.setattr(sys, "argv", ["script.py"])
    monkeypatch.setitem(sys.modules, "border", HERE)
    made = Executor("demo")
    names = ["answer", "fail", "spoil", "count", "write", "picture"]
    made.setup(interfaces=dict.fromkeys(names, "border"))
    return made


def answer(x: Any = None) -> Any:
    return x


def fail() -> None:
    raise ValueError("lost")


def spoil(values: list) -> None:
    values.clear()


def count(n: int) -> Any:
    yield from range(n)


def write(path: str) -> str:
    Path(path).write_text("written")
    return path


def run_of(exe: Executor) -> StoredRun:
    return StoredRun(exe.folder.path)


def research(exe: Executor) -> list[dict[str, Any]]:
    """What the research system's reader finds at the end of the run."""
    write_research_layout(run_of(exe))
    paths = (exe.folder.path / exe.label).glob("demo_*/*/result_data.json")
    return [json.loads(p.read_text()) for p in sorted(paths, key=lambda p: int(p.parent.name.partition("_")[0]))]


def test_a_failure_leaves_nothing_in_later_results(exe: Executor) -> None:
    exe.run("answer", "first")
    with pytest.raises(ValueError, match="lost"):
        exe.run("fail")
    exe.run("answer", None)
    first, failed, last = research(exe)
    assert (first["is_success"], first["fail_reason"], first["interface_return"]) == (True, "", "first")
    assert (
        not failed["is_success"] and failed["interface_return"] is None and "ValueError: lost" in failed["fail_reason"]
    )
    assert (last["is_success"], last["fail_reason"], last["interface_return"]) == (True, "", None)
    seven = {"fuc_name", "is_success", "fail_reason", "is_file", "file_path", "except_data", "interface_return"}
    assert all(set(data) == seven | {"process_time", "args"} for data in (first, failed, last))


@pytest.mark.parametrize("name", ["$(touch broken).txt", "a'b\"c.txt", "; rm -rf x.txt", "-n.txt"])
def test_a_file_name_is_no_command(exe: Executor, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = exe.now_record_path + name
    exe.run("write", path)
    (data,) = research(exe)
    assert data["is_file"] and data["file_path"] == path
    (copied,) = exe.folder.path.glob(f"{exe.label}/demo_*/1_write/*.txt")
    assert copied.name == name and copied.read_text() == "written" and not list(tmp_path.glob("broken*"))


def test_two_runs_within_a_second_have_two_folders(tmp_path: Path) -> None:
    made = [RecordFolder.make("demo", "pre", tmp_path) for _ in range(20)]
    assert len({folder.path for folder in made}) == 20


def test_arguments_are_those_before_the_call(exe: Executor) -> None:
    exe.run("spoil", [1, 2])
    assert research(exe)[0]["args"] == {"values": [1, 2]}
    assert next(run_of(exe).calls()).keywords == {"values": [1, 2]}


def test_a_path_is_joined_in_any_way(exe: Executor) -> None:
    path = exe.now_record_path
    joined = [path + "a.txt", path + "/a.txt", path / "a.txt", os.path.join(path, "a.txt"), f"{path}/a.txt"]
    assert {Path(p) for p in joined} == {exe.folder.path / "a.txt"}
    assert path.exists() and path.name == exe.folder.path.name
    exe.set_now_record_path(exe.folder.path / "pictures")
    assert exe.now_record_path + "a.txt" == f"{exe.folder.path}/pictures/a.txt"


def test_recording_does_not_stop_after_100_calls(exe: Executor) -> None:
    for i in range(120):
        exe.run("answer", i)
    assert [call.result for call in run_of(exe).calls()] == list(range(120)) and len(research(exe)) == 120


def test_generators_are_recorded_as_they_are_consumed(exe: Executor) -> None:
    stream = exe.run("count", 40)
    next(stream)
    assert next(run_of(exe).calls()).status == "streaming"
    list(stream)
    call = next(run_of(exe).calls())
    assert call.status == "returned" and call.result == {"type": "stream", "count": 40, "items": list(range(32))}
    assert load_value(call) == list(range(40))
    exe.run("count", 3)  # and forgotten
    assert [c.result["count"] for c in run_of(exe).calls()] == [40, 0]


def test_only_chosen_functions_are_recorded(exe: Executor) -> None:
    exe.set_record_function(["count"])
    assert exe.run("answer", 1) == 1 and list(exe.run("count", 1)) == [0]
    assert [call.interface for call in run_of(exe).calls()] == ["count"]
    with pytest.raises(TypeError):
        exe.set_record_function("count")  # type: ignore[arg-type]


def test_failures_are_none_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENWRIGHT_RECORDS", str(tmp_path))
    monkeypatch.setitem(sys.modules, "border", HERE)
    exe = Executor("demo", failures="none")
    exe.setup(interfaces={"fail": "border"})
    assert exe.run("fail") is None
    call = next(run_of(exe).calls())
    assert call.status == "raised" and call.exception is not None and call.exception["message"] == "lost"


def test_results_are_stored_in_full_and_arrays_told_by_their_numbers(exe: Executor) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    array[0, 0] = np.nan
    exe.run("answer", (array, {"x": 1}))
    call = next(run_of(exe).calls())
    told = call.keywords["x"]["items"][0]
    assert (told["min"], told["max"], told["mean"], told["nan"]) == (1.0, 5.0, 3.0, 1)
    stored = load_value(call)
    assert np.array_equal(stored[0], array, equal_nan=True) and stored[1] == {"x": 1}
    assert call.peak_memory is not None and call.peak_memory > 1_000_000 and call.line is not None


def test_secrets_are_not_written(tmp_path: Path) -> None:
    source = """
        import os, sys
        from tinymodel import generate
        secret = os.environ["SERVICE_TOKEN"] + sys.argv[2]
        generate(secret, api_key="hidden-in-a-name", eos_token="kept")
        generate("x" * 3000 + secret)  # too long for the record itself
    """
    argv = ["--password", "a-long-password", "--max-tokens", "5"]
    run = record(
        source, tmp_path, {"argv": argv, "environment": {"SERVICE_TOKEN": "s3cret-value-of-token", "PYTHONPATH": PATH}}
    )
    assert run.data["status"] == "ended", errors(run)
    texts = "".join(p.read_text() for p in run.path.rglob("*.json"))
    assert not any(secret in texts for secret in ("s3cret", "a-long-password", "hidden-in")) and '"kept"' in texts
    assert run.data["argv"] == ["--password", "[redacted]", "--max-tokens", "5"]


def test_the_run_tells_itself(tmp_path: Path) -> None:
    source = """
        import random
        from tinymodel import generate
        random.seed(7)
        open("relative.txt", "w").write("in the record")
        generate("x")
    """
    run = record(source, tmp_path, {"argv": ["a"], "answers": ["b"]}, name="odd $(name).py")
    data = run.data
    assert data["status"] == "ended" and data["exit_code"] == 0 and data["mode"] == "intercept", errors(run)
    assert data["seeds"]["found"] == [{"line": 4, "call": "random.seed(7)"}] and data["argv"] == ["a"]
    assert [(f["path"], f["outside"]) for f in data["files"]] == [("work/relative.txt", False)]
    assert (run.path / "work" / "relative.txt").read_text() == "in the record"
    assert not (tmp_path / "scripts" / "relative.txt").exists()
    assert data["started"] < data["ended"] and data["processes"][0]["pid"]
    assert next(run.calls()).line == 6 and next(run.calls()).file == data["script"]


def test_a_traceback_has_the_scripts_own_lines(tmp_path: Path) -> None:
    run = record("from tinymodel import generate\ngenerate('x')\n\nraise SystemError('the end')\n", tmp_path)
    assert run.data["status"] == "failed" and run.data["exit_code"] == 1
    script = tmp_path / "scripts" / "script.py"
    lines = [f'  File "{script}", line 4, in <module>', "    raise SystemError('the end')", "SystemError: the end"]
    assert errors(run).splitlines() == ["Traceback (most recent call last):", *lines]


def test_a_limit_on_calls_ends_the_run(tmp_path: Path) -> None:
    source = "from tinymodel import generate\nwhile True:\n  try: generate('x')\n  except BaseException: pass\n"
    run = record(source, tmp_path, {"limits": {"calls": 5}})
    assert (run.data["status"], run.data["limit"], run.count()) == ("limit", "calls", 5)


def test_a_killed_run_says_so_when_it_is_looked_at(tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text(
        "import os, time\nfrom Inspection.core.executor import Executor\nexe = Executor('demo', 'x')\n"
        "exe.setup(interfaces={'sleep': 'time'})\nexe.run('sleep', 0)\nprint(flush=True)\nexe.run('sleep', 60)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "GENWRIGHT_RECORDS": str(tmp_path / "records")}
    process = subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline()
    assert open_run("last", tmp_path / "records").data["status"] == "running"
    while open_run("last", tmp_path / "records").count() < 2:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    run = open_run("last", tmp_path / "records")
    assert run.data["status"] == "killed" and [c.status for c in run.calls()] == ["returned", "started"]


def test_a_generated_script_alone_ends_or_fails(tmp_path: Path) -> None:
    head = "from Inspection.core.executor import Executor\nexe = Executor('demo', 'x')\n"
    environment = os.environ | {"PYTHONPATH": PATH}
    for number, (body, status) in enumerate({"": "ended", "raise ValueError": "failed"}.items()):
        root = tmp_path / str(number)
        subprocess.run(
            [sys.executable, "-c", head + body],
            env=environment | {"GENWRIGHT_RECORDS": str(root)},
            capture_output=True,
            check=False,
        )
        assert open_run("last", root).data["status"] == status
