"""Runs that misbehave are ended at their limit, say which, and leave nothing running."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from isolated_scripts import Run, left_running, printed

from genwright.inspect.isolation.isolation import Limits


def test_infinite_loop(either: Run, tmp_path: Path) -> None:
    ended = either("print('started')\nwhile True: pass", Limits(seconds=0.5))
    assert (ended.status, ended.limit) == ("limit", "seconds")
    assert printed(tmp_path) == "started\n"  # a killed run leaves what it printed


def test_processor_time_of_all_processes(either: Run) -> None:
    ended = either("import os; os.fork()\nwhile True: pass", Limits(seconds=30, cpu_seconds=0.3))
    assert ended.limit == "cpu_seconds"


def test_huge_allocation(either: Run) -> None:
    text = "data = []\nwhile True: data.append(bytearray(b'x' * 2**24))"
    ended = either(text, Limits(seconds=30, memory_gb=0.3))
    assert ended.limit == "memory_gb" and 0.3e9 <= ended.peak_memory < 3e9


def test_memory_that_processes_share_is_counted_once(run: Run) -> None:
    text = "import os, time\ndata = b'x' * 2**28\nfor _ in range(3):\n    if not os.fork(): break\ntime.sleep(0.2)"
    assert run(text, Limits(seconds=30, memory_gb=0.6)).status == "ended"


def test_fork_bomb(either: Run) -> None:
    # At most 300 processes, should the limit not hold.
    text = "import os, time\nfor _ in range(300):\n    if not os.fork(): time.sleep(60)\ntime.sleep(60)"
    assert either(text, Limits(seconds=30, processes=10)).limit == "processes"


def test_endless_output(either: Run, tmp_path: Path) -> None:
    ended = either("while True: print('x' * 1000)", Limits(seconds=30, output_mb=0.1))
    assert ended.limit == "output_mb" and len(printed(tmp_path)) == 100_000


def test_files_count_as_output(either: Run) -> None:
    text = "import time\nopen('large', 'wb').write(b'x' * 3_000_000)\ntime.sleep(60)"
    assert either(text, Limits(seconds=30, output_mb=2)).limit == "output_mb"


def test_processes_that_leave_their_parent_are_ended(either: Run, tmp_path: Path) -> None:
    leave = "import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', WAIT, MARK], start_new_session=True)"
    text = f"import subprocess, sys\nWAIT, MARK = 'import time; time.sleep(60)', sys.argv[1]\n{leave}"
    assert either(text).status == "ended"  # the fixture looks for what is left


def test_the_input_is_empty_and_the_output_is_echoed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run("import sys; print([sys.stdin.read()])", echo=True)
    assert capsys.readouterr().out == "['']\n"


def test_run_ends_with_the_process_that_started_it(run: Run, project: Path, tmp_path: Path) -> None:
    assert run("").status == "ended"  # where namespaces are refused, the test ends here
    script = project / "script.py"
    script.write_text("import os, time; os.fork(); print('started'); time.sleep(60)")
    text = f"""
import sys
from pathlib import Path
from genwright.inspect.isolation.isolation import *
command = [sys.executable, {str(script)!r}, {str(tmp_path)!r}]
run_isolated(command, Path({str(tmp_path / "record")!r}), *[Path({str(project)!r})] * 2, Isolation())
"""
    starter = psutil.Popen(
        [sys.executable, "-c", text], env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    )
    output = tmp_path / "record" / "output.txt"
    wait_until(lambda: output.exists() and output.read_text().count("started") == 2)
    assert len(left_running(str(tmp_path))) == 2
    starter.kill()
    starter.wait()
    wait_until(lambda: not left_running(str(tmp_path)))


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
