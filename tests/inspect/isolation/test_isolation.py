"""What a run is shown, what it may not do, and how it is refused; its record says how it ended."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from isolated_scripts import Run, isolated, printed, refuse_namespaces

from genwright.errors import UserError
from genwright.inspect.isolation import isolation as module
from genwright.inspect.isolation.isolation import Isolation, Limits


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
    with pytest.raises(UserError, match="There is no /missing that a run could be shown"):
        run("", readable=(Path("/missing"),))


def test_command_that_cannot_start(tmp_path: Path, project: Path) -> None:
    ended = isolated(["/missing"], tmp_path / "record", project, project, Isolation())
    assert ended.status == "refused"
    assert ended.message == ("The command could not be started ([Errno 2] No such file or directory: '/missing').")
