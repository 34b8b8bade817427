"""Runs that misbehave are ended or refused within their limit, say which, and leave nothing running."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from genwright.errors import UserError
from genwright.inspect.isolation import isolation as module
from genwright.inspect.isolation.isolation import Ended, Isolation, Limits, run_isolated
from genwright.inspect.isolation.sandbox_watch import Watch

Run = Callable[..., Ended]
REASON = "the test refuses them"


def isolated(*arguments: Any, **options: Any) -> Ended:
    """`run_isolated`, or the end of the test where the system itself refuses namespaces."""
    ended = run_isolated(*arguments, **options)
    if "refuses namespaces" in ended.message and REASON not in ended.message:
        pytest.skip(ended.message)
    return ended


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "a project, with: signs"
    folder.mkdir()
    (folder / "data.txt").write_text("data")
    return folder


@pytest.fixture
def run(tmp_path: Path, project: Path) -> Run:
    """Run a script's text in `project`; the mark in its arguments finds its processes."""

    def start(text: str, limits: Limits | None = None, **isolation: object) -> Ended:
        script, folder = project / "script.py", tmp_path / "records" / "run-0001"
        script.write_text(text)
        command = [sys.executable, str(script), str(tmp_path)]
        limits = limits or Limits(seconds=30)
        ended = isolated(command, folder, project, project, Isolation(limits, **isolation))  # type: ignore[arg-type]
        assert not left_running(str(tmp_path))
        return ended

    return start


def left_running(mark: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if mark in process.cmdline() and process.pid != os.getpid():
                found.append(process.pid)
    return found


def printed(tmp_path: Path, name: str = "output.txt") -> str:
    return (tmp_path / "records" / "run-0001" / name).read_text()


@pytest.fixture(params=["namespaces", "unsafe"])
def either(request: pytest.FixtureRequest, run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same with namespaces, and where the system refuses them but the user insists."""
    if request.param == "namespaces":
        return run
    refuse_namespaces(monkeypatch)
    return lambda text, limits=None, **isolation: run(text, limits, unsafe=True, **isolation)


def refuse_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Watch, stdin: object) -> None:
        self.refused = REASON

    real = Watch.run
    monkeypatch.setattr(Watch, "run", lambda self, stdin: (refused if self._plan["namespaces"] else real)(self, stdin))


def test_result_of_an_orderly_run(either: Run, tmp_path: Path) -> None:
    ended = either("import sys; print('out'); print('err', file=sys.stderr)")
    assert (ended.status, ended.exit_code, ended.limit) == ("ended", 0, None)
    assert ended.seconds > 0 and ended.peak_memory > 1e6
    assert (printed(tmp_path), printed(tmp_path, "error.txt")) == ("out\n", "err\n")
    assert {path.name for path in (tmp_path / "records" / "run-0001").iterdir()} == {"output.txt", "error.txt", "work"}


@pytest.mark.parametrize(
    "text, status, code",
    [("raise SystemExit(3)", "failed", 3), ("import os; os.kill(os.getpid(), 9)", "killed", -9)],
)
def test_failures(either: Run, text: str, status: str, code: int) -> None:
    ended = either(text)
    assert (ended.status, ended.exit_code) == (status, code)


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


def test_working_directory_shows_the_script_folder_and_catches_what_is_written(
    run: Run, project: Path, tmp_path: Path
) -> None:
    text = """
import os
beside = os.path.join(os.path.dirname(__file__), "beside.txt")
print(open("data.txt").read())
for path in ("new.txt", "data.txt", beside, "/tmp/elsewhere.txt"):
    with open(path, "a") as file: file.write("more")
print(open("beside.txt").read(), open(os.path.join(os.path.dirname(__file__), "data.txt")).read())
os.remove(__file__)
"""
    ended = run(text)
    assert (ended.status, printed(tmp_path)) == ("ended", "data\nmore datamore\n"), printed(tmp_path, "error.txt")
    written = {each["path"]: each for each in ended.written}
    assert set(written) == {"work/new.txt", "work/data.txt", "work/beside.txt", "work/script.py", "/tmp/elsewhere.txt"}
    assert written["work/script.py"]["deleted"] and not written["work/new.txt"]["outside"]
    assert written["/tmp/elsewhere.txt"]["outside"] and written["/tmp/elsewhere.txt"]["size"] == 4
    assert (tmp_path / "records/run-0001" / written["work/data.txt"]["kept"]).read_text() == "datamore"
    assert (project / "data.txt").read_text() == "data" and (project / "script.py").read_text() == text
    assert len(list(project.iterdir())) == 2


@pytest.mark.parametrize("inner", [".", "inner"])
def test_record_inside_the_project(project: Path, inner: str) -> None:
    """Its folder is part of the layers' lower folders, and still writable."""
    folder, script = project / "records" / "run-0001", project / inner / "script.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text("import os, sys; open('out', 'w'); open(sys.argv[1] + '/calls.json', 'w'); list(os.walk('.'))")
    command = [sys.executable, str(script), str(folder)]
    ended = isolated(command, folder, script.parent, project, Isolation(Limits(seconds=30)))
    assert (ended.status, [each["path"] for each in ended.written]) == ("ended", ["work/out"])
    assert (folder / "calls.json").exists() and not (project / inner / "out").exists()


def test_links_where_layers_are_refused(
    run: Run, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "folder").mkdir()
    (project / "folder" / "inner.txt").write_text("inner")
    # The overlay file system refuses a scratch folder that does not lie beside what is written.
    real = module.plan_mounts

    def refused(*arguments: object) -> object:
        return [replace(each, scratch="/") if each.scratch else each for each in real(*arguments)]  # type: ignore[arg-type]

    monkeypatch.setattr(module, "plan_mounts", refused)
    ended = run("print(open('folder/inner.txt').read()); open('folder/new', 'w'); open(__file__, 'a')")
    assert printed(tmp_path) == "inner\n" and "Read-only file system" in printed(tmp_path, "error.txt")
    assert [each["path"] for each in ended.written] == ["work/folder/new"]


def test_writes_outside_are_found_without_layers(
    run: Run, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_namespaces(monkeypatch)
    text = """
import os, tempfile
print(open("data.txt").read())
open("new.txt", "w").close()
open(os.path.join(os.path.dirname(__file__), "beside.txt"), "w").close()
open(tempfile.gettempdir() + "/t", "w").close()
open(os.path.expanduser("~/h"), "w").close()
"""
    ended = run(text, unsafe=True)
    assert printed(tmp_path) == "data\n" and set(ended.unenforced) == {"network", "home", "project"}
    home = module.home_folders()[0]
    assert {each["path"] for each in ended.written} == {
        "work/new.txt",
        str(project / "beside.txt"),
        "/tmp/t",
        f"{home}/h",
    }


def test_refused_in_one_sentence_where_namespaces_are(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_namespaces(monkeypatch)
    ended = run("print(1)")
    assert ended.status == "refused" and ended.unenforced == ["network", "home", "project"]
    assert ended.message == (
        "This system refuses namespaces to a run (the test refuses them), so that these cannot be protected "
        "from it: network, home, project. Pass --unsafe to run it."
    )


def test_script_in_the_home_folder_is_refused(run: Run, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(project))
    assert run("print(1)").status == "refused"


def test_network_is_refused_but_the_machine_itself_answers(run: Run, tmp_path: Path) -> None:
    text = """
import socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
try: socket.create_connection(("192.0.2.1", 80), timeout=5)
except OSError as error: print(error)
"""
    assert run(text).status == "ended" and "unreachable" in printed(tmp_path)


def test_network_if_allowed(run: Run, tmp_path: Path) -> None:
    text = "import os; print(os.readlink('/proc/self/ns/net'))"
    assert run(text, network=True).status == "ended"
    assert printed(tmp_path).strip() == os.readlink("/proc/self/ns/net")


def test_home_and_other_runs_temporary_files_are_hidden(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, models = tmp_path / "home", tmp_path / "home" / "models"
    models.mkdir(parents=True)
    (home / "secret").write_text("secret")
    (models / "weights").write_text("weights")
    monkeypatch.setenv("HOME", str(home))
    text = f"""
import os
print(open({str(models / "weights")!r}).read(), os.path.expanduser("~"))
open(os.path.expanduser("~/note"), "w").close()
for path in ({str(home / "secret")!r}, {str(models / "weights")!r}):
    try: open(path, "r+")
    except OSError as error: print(error.strerror)
"""
    ended = run(text, readable=(models,))
    assert printed(tmp_path) == f"weights {home}\nNo such file or directory\nRead-only file system\n"
    assert [each["path"] for each in ended.written] == [f"{home}/note"] and not (home / "note").exists()


def test_writable_folder(run: Run, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    run(f"open({str(tmp_path / 'results' / 'file')!r}, 'w')", writable=(tmp_path / "results",))
    assert (tmp_path / "results" / "file").exists()


def test_no_privileges(run: Run, tmp_path: Path) -> None:
    text = """
import os
for path in ("/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/etc/passwd"):
    print(os.access(path, os.W_OK))
print([line.split()[1].strip("0") for line in open("/proc/self/status") if line.startswith("Cap")])
print(sorted(int(name) for name in os.listdir("/proc") if name.isdigit())[0], os.getuid())
"""
    run(text)
    assert printed(tmp_path) == f"False\nFalse\nFalse\n['', '', '', '', '']\n1 {os.getuid()}\n"


def test_environment_is_an_allow_list(either: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "ANYTHING", "GENWRIGHT_API_KEY"):
        monkeypatch.setenv(name, "1")
    either("import os; print(*sorted(os.environ))", environment={"GIVEN": "yes"})
    names = printed(tmp_path).split()
    assert {"GIVEN", "OMP_NUM_THREADS", "HOME", "PATH"} <= set(names)
    assert not {"ANYTHING", "GENWRIGHT_API_KEY"} & set(names)


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


def test_standard_input_and_echo(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "script.py").write_text("print(input())")
    (tmp_path / "answers").write_text("yes\n")
    with (tmp_path / "answers").open() as answers:
        command = [sys.executable, str(project / "script.py")]
        isolated(command, tmp_path / "record", project, project, Isolation(), answers, echo=True)
    assert capsys.readouterr().out == "yes\n"


def test_limits_that_a_scenario_does_not_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits.of_scenario({"seconds": 5, "processes": 3}, tmp_path)
    assert (limits.seconds, limits.cpu_seconds, limits.processes, limits.calls) == (5, None, 3, None)
    assert 0 < limits.memory_gb * 1e9 < psutil.virtual_memory().total  # type: ignore[operator]
    assert Limits.of_scenario({}, tmp_path).processes == 1000
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=6_000_000))
    assert Limits.of_scenario({}, tmp_path).output_mb == 3


def test_wrong_limits_and_paths(run: Run) -> None:
    with pytest.raises(UserError, match="The limit seconds must be a positive number, not 0"):
        Limits(seconds=0)
    with pytest.raises(UserError, match="does not exist"):
        run("", readable=(Path("/missing"),))


def test_command_that_cannot_start(tmp_path: Path, project: Path) -> None:
    ended = isolated(["/missing"], tmp_path / "record", project, project, Isolation())
    assert ended.status == "refused"
    assert ended.message == ("The command could not be started ([Errno 2] No such file or directory: '/missing').")
