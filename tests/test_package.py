"""The package that `pip install .` makes, in an environment of its own."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from genwright.kernels.cpu.fused_linear import kernel

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
OFFLINE = ["--no-index", "--no-deps"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, because setuptools writes into the source tree."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("genwright", "Inspection"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    build = [*PIP, "wheel", *OFFLINE, "--no-build-isolation", "--wheel-dir", folder, folder]
    subprocess.run(build, check=True, env={**os.environ, "PATH": ""})  # no compiler is needed
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def genwright(wheel: Path, tmp_path_factory: pytest.TempPathFactory):
    """Runs the installed command, in a folder from which the source tree cannot be imported."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, symlinks=True)
    subprocess.run([*PIP, "--python", home, "install", *OFFLINE, "--no-compile", wheel], check=True)
    # What the package depends on is this environment's; of a folder that is named so, no other .pth is read.
    (next(home.glob("lib/*/site-packages")) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"GENWRIGHT_HOME": str(home / "kept"), "OMP_NUM_THREADS": "1"}

    def run(*arguments: str, errors: list[str] | None = None, **variables: str) -> str:
        command = [home / "bin" / "genwright", *arguments]
        done = subprocess.run(command, cwd=home, env={**environment, **variables}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        if errors is not None:
            errors += done.stderr.splitlines()
        return done.stdout

    run.home = home
    return run


def test_every_file_of_the_source_is_in_the_wheel(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    tracked = subprocess.run(["git", "ls-files", "genwright", "Inspection"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("no git, or no checkout")
    assert {name for name in tracked.stdout.splitlines() if (ROOT / name).exists()} <= packed


@pytest.mark.skipif(kernel() is None, reason="no C++ compiler")
def test_text_and_the_kernel_it_compiles(genwright) -> None:
    assert genwright("--version") == f"genwright {version('genwright')}\n"
    model = ("--model", "random:stories15m,layers=1", "--device", "cpu")
    assert (
        len(genwright("generate", "--prompt-length", "3", "--max-new-tokens", "4", "--ignore-eos", *model).split()) == 4
    )
    assert list((genwright.home / "kept" / "kernels").glob("fused_linear-*.so"))


def test_without_a_compiler_one_line_says_what_is_used_instead(genwright) -> None:
    model = ("--model", "random:stories15m,layers=1", "--device", "cpu", "--dtype", "float32")
    arguments = ("generate", "--prompt-length", "3", "--max-new-tokens", "4", "--ignore-eos", "--seed", "1", *model)
    errors: list[str] = []
    place = {"PATH": "", "CXX": "", "GENWRIGHT_HOME": str(genwright.home / "none")}
    tokens = genwright(*arguments, errors=errors, **place)
    assert tokens == genwright(*arguments) and len(tokens.split()) == 4
    said = [line for line in errors if line.startswith("genwright: ")]
    assert len(said) == 1 and "No C++ compiler" in said[0] and "PyTorch's kernels are used instead" in said[0], errors


def test_images_of_the_model_in_the_box(genwright) -> None:
    genwright("images", "-n", "1", "--seed", "1", "--sampler", "onestep", "--out", "drawn", "--device", "cpu")
    assert (genwright.home / "drawn" / "grid.png").is_file()
