"""Drop-ins in general: our modules come before those beside a script, in its children too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from genwright.dropin.origins import ORIGINS
from genwright.dropin.run import folder

ROOT = Path(__file__).parents[2]


def dropin(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-m", "genwright", "dropin", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)


@pytest.mark.parametrize("name", ORIGINS)
def test_every_command_is_a_module_of_the_folder(name: str) -> None:
    assert all(
        (folder(name) / f"{module.replace('.', '/')}.py").is_file() for module in ORIGINS[name].commands.values()
    )
    assert set(ORIGINS[name].whole) <= set(ORIGINS[name].commands.values())


def test_the_list_and_the_path(tmp_path: Path) -> None:
    listed = dropin(cwd=tmp_path).stdout
    assert all(name in listed for name in ORIGINS)
    path = dropin("flexllmgen", "--path", cwd=tmp_path).stdout
    assert path == f"{ROOT}/genwright/dropin/flexllmgen\n"
    command = [sys.executable, "-c", "import flexllmgen; print(flexllmgen.__file__)"]
    environment = {**os.environ, "PYTHONPATH": path.strip()}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout == f"{path.strip()}/flexllmgen/__init__.py\n"


def test_a_script_gets_our_modules_and_its_own(tmp_path: Path) -> None:
    package = tmp_path / "project" / "flexllmgen"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('the original was imported')\n")
    (package.parent / "beside.py").write_text("NAME = 'beside'\n")
    script = package.parent / "script.py"
    script.write_text(
        "import os, subprocess, sys\n"
        "from flexllmgen.timer import timers\n"
        "from beside import NAME\n"
        "if __name__ == '__main__':\n"
        "    print(NAME, sys.argv[1:], timers.__class__.__module__)\n"
        "    child = 'import flexllmgen.timer; print(flexllmgen.timer.__file__)'\n"
        "    sys.stdout.flush()\n"
        "    subprocess.run([sys.executable, '-c', child], cwd=os.path.dirname(sys.executable), check=True)\n"
        "    sys.exit(3)\n"
    )
    done = dropin("flexllmgen", "--script", script, "--help", "--path", "x", cwd=package.parent)
    assert done.returncode == 3, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "beside ['--help', '--path', 'x'] flexllmgen.timer"
    assert second == str(folder("flexllmgen") / "flexllmgen" / "timer.py")


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("import flexllmgen.dist_utils", "module flexllmgen.dist_utils"),
        ("from flexllmgen.utils import no_such", "no_such in flexllmgen.utils"),
    ],
)
def test_what_the_drop_in_lacks_is_one_sentence(tmp_path: Path, line: str, missing: str) -> None:
    (tmp_path / "script.py").write_text(f"{line}\n")
    done = dropin("flexllmgen", "--script", "script.py", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"genwright: The drop-in flexllmgen has no {missing};")


def test_an_import_error_of_the_scripts_own_is_shown_whole(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("from json import no_such\n")
    done = dropin("flexllmgen", "--script", "script.py", cwd=tmp_path)
    assert "Traceback" in done.stderr and "cannot import name 'no_such' from 'json'" in done.stderr


def test_ranks_are_left_before_the_process_ends(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "import atexit\n"
        "atexit.register(lambda: print(dist.is_initialized()))\n"
    )
    done = dropin("gpt_fast", "--script", "script.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["flexgen"], "There is no drop-in 'flexgen'; there is flexllmgen, "),
        (["flexllmgen", "--script"], "--script needs a file."),
        (["flexllmgen", "--script", "none.py"], "There is no script none.py."),
        (["torchbench", "--output", "."], ". cannot be read or written: Is a directory."),
        (["flexllmgen", "helm_run"], "flexllmgen has no command 'helm_run'; its commands are flex_opt, completion,"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, arguments: list[str], words: str) -> None:
    done = dropin(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"genwright: {words}")
    assert done.stderr.count("\n") == 1
