"""Calls in other processes of a script are recorded once each, in order, with their process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixture_cases import PROJECT, ROOT
from recorded_scripts import errors, record

from genwright.inspect.records.stored_runs import StoredRun

FULL = "GENWRIGHT_FULL_SIZE" in os.environ
POOL = """
    import multiprocessing
    from tinymodel import generate

    def work(i):
        return generate(f"child {{i}}", 1)

    if __name__ == "__main__":
        generate("first")
        with multiprocessing.get_context("{method}").Pool(2) as pool:
            print(sorted(pool.map(work, range(8))), pool.map(generate, ["direct"]))
        generate("last")
"""
OWN = """
    import multiprocessing

    class Painter:
        def paint(self, what):
            return what

    def work(i):
        return Painter().paint(i)

    if __name__ == "__main__":
        with multiprocessing.get_context("{method}").Pool(1) as pool:
            print(pool.map(work, range(3)))
"""


def prompts(run: StoredRun) -> list[str]:
    assert run.data["status"] == "ended", errors(run)
    return [call.keywords["prompt"] for call in run.calls()]


METHODS = [(method, mode) for method in ("fork", "spawn", "forkserver") for mode in ("intercept", "rewrite")]
# Of rewritten scripts only spawned processes load the file anew.
SOME = [(method, mode) for method, mode in METHODS if mode == "intercept" or method == "spawn"]


@pytest.mark.parametrize("method, mode", METHODS if FULL else SOME)
def test_every_call_of_a_pool_is_recorded_once(method: str, mode: str, tmp_path: Path) -> None:
    run = record(POOL.format(method=method), tmp_path, mode=mode)
    calls = list(run.calls())
    told = prompts(run)
    expected = ["first", *(f"child {i}" for i in range(8)), "last"] + (["direct"] if mode == "intercept" else [])
    assert sorted(told) == sorted(expected)
    assert told[0] == "first" and told[-1] == "last" and [c.number for c in calls] == list(range(1, len(calls) + 1))
    main = calls[0].process
    assert calls[-1].process == main and all(c.process != main for c in calls[1:-1])
    assert {p["pid"] for p in run.data["processes"]} >= {c.process for c in calls}
    assert all(c.line == 6 for c in calls if c.keywords["prompt"].startswith("child"))


@pytest.mark.parametrize("method", ["spawn", "fork"] if FULL else ["spawn"])
def test_what_the_script_defines_is_recorded_in_its_children(method: str, tmp_path: Path) -> None:
    from genwright.inspect.analysis.manifest import parse_manifest

    data = {"name": "Painter.paint", "module": "script", "signature": "(what)"}
    run = record(
        OWN.format(method=method), tmp_path, manifest=parse_manifest({"project": "p", "interface": [data]}, "")
    )
    assert run.data["status"] == "ended", errors(run)
    assert [call.keywords for call in run.calls()] == [{"what": i} for i in range(3)]


@pytest.mark.parametrize("mode", ["intercept", "rewrite"])
def test_processes_of_other_kinds(mode: str, tmp_path: Path) -> None:
    """os.fork, a process pool of concurrent.futures, and the script itself as another program."""
    source = """
        import concurrent.futures, os, subprocess, sys
        from tinymodel import generate

        def work(i):
            return generate(f"pool {i}", 1)

        if __name__ == "__main__":
            if len(sys.argv) > 1:
                generate(f"again {sys.argv[1]}")
                sys.exit()
            pid = os.fork()
            if not pid:
                generate("forked")
                os._exit(0)
            os.waitpid(pid, 0)
            with concurrent.futures.ProcessPoolExecutor(2) as pool:
                list(pool.map(work, range(3)))
            subprocess.run([sys.executable, __file__, "x"], check=True)
    """
    run = record(source, tmp_path, mode=mode)
    assert sorted(prompts(run)) == ["again x", "forked", "pool 0", "pool 1", "pool 2"]
    assert prompts(run)[0] == "forked" and prompts(run)[-1] == "again x"


def test_threads_are_told_apart_by_nothing_and_recorded_once(tmp_path: Path) -> None:
    source = """
        from concurrent.futures import ThreadPoolExecutor
        from tinymodel import generate
        with ThreadPoolExecutor(4) as pool:
            print(sum(len(t) for t in pool.map(generate, [str(i) for i in range(40)])))
    """
    run = record(source, tmp_path)
    assert sorted(prompts(run), key=int) == [str(i) for i in range(40)]


def test_a_rewritten_script_alone_keeps_its_children_in_one_run(tmp_path: Path) -> None:
    """Without the command: the file is started by Python itself."""
    made = record(POOL.format(method="spawn"), tmp_path, mode="rewrite")
    script = tmp_path / "alone.py"
    script.write_text((made.path / "script.py").read_text())
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(PROJECT)]),
        "GENWRIGHT_RECORDS": str(tmp_path / "alone"),
        "GENWRIGHT_RUN": "",
    }
    subprocess.run([sys.executable, str(script)], env=environment, check=True, capture_output=True)
    (run,) = [StoredRun(p.parent) for p in (tmp_path / "alone").glob("*/*/run.json")]
    assert len(prompts(run)) == 10
