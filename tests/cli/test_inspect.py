"""`genwright inspect`: every command on a small repository, alone and in a batch."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[1] / "inspect" / "fixtures"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / "project", tmp_path / "project"))


def genwright(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "genwright", "inspect", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def test_interfaces_drafts_a_manifest_and_its_document(project: Path, tmp_path: Path) -> None:
    done = genwright("interfaces", project, "--out", "m.toml", "--doc", "m.md", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'name = "Model.generate"' in (tmp_path / "m.toml").read_text()
    assert "# Interfaces of project" in (tmp_path / "m.md").read_text()
    located = genwright("locate", project / "class_object.py", "--manifest", "m.toml", "--json", cwd=tmp_path)
    row = json.loads(located.stdout)
    found = [site["interface"] for site in row["sites"]]
    assert row["script"] == str(project / "class_object.py")
    assert found.count("Model") == 1 and found.count("Model.generate") == 2


def test_rewrite_shows_a_diff_and_writes_a_script_that_runs(project: Path, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('argv = ["--prompt", "hi"]\n[set]\nmain.extra = 1\n')
    done = genwright("rewrite", project / "argparse_options.py", "--scenario", "s.toml", "--out", "new", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert '+            "generate", prompt=args.prompt + str(index),' in done.stdout and "untouched" in done.stderr
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "new/argparse_options.py"], cwd=tmp_path, env=environment, capture_output=True
    )
    assert ran.stdout.decode().split() == ["hi0!!", "hi1!!", "hi2!!"]
    assert len(list((tmp_path / "records").rglob("calls/*-run-generate.json"))) == 3


def test_missing_values_are_asked_for_in_one_message(project: Path, tmp_path: Path) -> None:
    given = [project / "click_command.py", "--manifest", project / "tinymodel.toml"]
    done = genwright("rewrite", *given, "--ask", cwd=tmp_path)
    assert done.returncode == 1 and not (tmp_path / "rewritten").exists()
    assert done.stderr.count("\n") == 1
    assert "--prompt (str): What to continue." in done.stderr and "PATH (str)" in done.stderr
    # Without --ask they are chosen, listed and written to a file that gives the same script.
    done = genwright("rewrite", *given, "--scenario-out", "chosen.toml", cwd=tmp_path)
    assert done.returncode == 0 and "chosen: --prompt = " in done.stderr, done.stderr
    again = genwright("rewrite", *given, "--ask", "--scenario", "chosen.toml", "--out", "again", cwd=tmp_path)
    assert again.returncode == 0 and "chosen:" not in again.stderr
    name = "click_command.py"
    assert (tmp_path / "again" / name).read_text() == (tmp_path / "rewritten" / name).read_text()


def test_samples_are_listed_and_can_be_turned_off(project: Path, tmp_path: Path) -> None:
    manifest = ["--manifest", project / "tinymodel.toml"]
    done = genwright("rewrite", project / "media_paths.py", *manifest, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "line 5: 'path/to/image.jpg' becomes the sample images/test_image.jpg" in done.stderr
    done = genwright("rewrite", project / "media_paths.py", *manifest, "--no-samples", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["samples"] == []
    assert 'image_path = "path/to/image.jpg"' in (tmp_path / "rewritten" / "media_paths.py").read_text()


def test_a_batch_goes_on_after_a_failure(project: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (")
    manifest = project / "tinymodel.toml"
    scripts = [project / "generators.py", tmp_path / "broken.py", project / "async_main.py"]
    done = genwright("rewrite", *scripts, "--manifest", manifest, "--json", cwd=tmp_path)
    results = json.loads(done.stdout)
    assert done.returncode == 1 and "1 of 3 scripts failed" in done.stderr and "Traceback" not in done.stderr
    assert [bool(r.get("written")) for r in results] == [True, False, True]


def test_explain_in_both_forms(project: Path, tmp_path: Path) -> None:
    script = project / "input_loop.py"
    done = genwright("explain", script, "--lang", "zh", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("$$$$$代码逻辑分析$$$$$"), done.stderr
    data = json.loads(genwright("explain", script, "--json", cwd=tmp_path).stdout)
    assert data["blockers"][0]["kind"] == "input" and data["sites"][0]["interface"] == "generate"


@pytest.mark.parametrize(
    "arguments",
    [
        ["locate", "nowhere.py"],
        ["interfaces", "nowhere"],
        ["rewrite", ".", "--out", "x"],
        ["explain", "script.py", "--manifest", "nowhere.toml"],
        ["explain", "script.py", "--lang", "de", "--manifest", "m.toml"],
        ["rewrite", "script.py", "--scenario", "nowhere.toml"],
        ["rewrite", "script.py", "--repo", "nowhere"],
        ["rewrite", "script.py", "--manifest", "m.toml", "--out", "."],
        ["locate", "binary.py", "--manifest", "m.toml"],
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], project: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    if arguments[1] != ".":
        (folder / "script.py").write_text("from tinymodel import generate\ngenerate('x')\n")
        (folder / "binary.py").write_bytes(b"\xff\xfe\x00")
        shutil.copy(project / "tinymodel.toml", folder / "m.toml")
    done = genwright(*arguments, cwd=folder)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("genwright: ") and done.stderr.count("\n") == 1


def test_a_notebook_is_rewritten_as_a_script(project: Path, tmp_path: Path) -> None:
    cells = ["%matplotlib inline\nfrom tinymodel import generate", ["text = generate('a')\n", "print(text)"]]
    data = {"nbformat": 4, "cells": [{"cell_type": "code", "source": cell} for cell in cells]}
    (project / "demo.ipynb").write_text(json.dumps(data))
    done = genwright("rewrite", project / "demo.ipynb", "--out", "new", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "new" / "demo.py").read_text()
    assert "# magic: %matplotlib inline" in text and '"generate", prompt=' in text


def test_no_site_is_said_with_what_is_nearest(project: Path, tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text('project = "p"\n[[interface]]\nname = "other"\nmodule = "tinymodel.core"\n')
    for command in ("locate", "rewrite"):
        done = genwright(command, project / "async_main.py", "--manifest", "m.toml", cwd=tmp_path)
        assert done.returncode == 1, done.stderr
        assert "calls no interface of p; nearest are generate, agenerate" in done.stderr


def test_class_methods_and_factories_of_other_modules_run(tmp_path: Path) -> None:
    network = "class Net:\n    def forward(self, x): return x + 1\n    __call__ = forward\n"
    network += "    @classmethod\n    def twice(cls, x): return model(model(x))\ndef model(x): return x * 2\n"
    for name, text in {
        "pack/__init__.py": "",
        "pack/net.py": network,
        "pack/made.py": "from pack.net import Net\ndef make(p): return Net()\n",
        "run.py": "from pack.made import make\nfrom pack.net import Net\nm = make('a')\nprint(m(1), Net.twice(3))\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = genwright("rewrite", tmp_path / "run.py", "--out", "new", cwd=tmp_path)
    assert done.returncode == 0 and "3 sites" in done.stderr, done.stderr
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    ran = subprocess.run([sys.executable, "new/run.py"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stdout == "2 12\n", ran.stderr


def test_the_stages_of_a_script_are_one_page(project: Path, tmp_path: Path) -> None:
    scripts = [project / "class_object.py", project / "either_object.py"]
    done = genwright("explain", scripts[0], "--stages", "page.html", "--lang", "zh", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout == "page.html\n", done.stderr
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Model.generate : 5" in page and "它得到输入" in page
    done = genwright("explain", *scripts, "--stages", "page.html", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "genwright: --stages writes the page of one script, not of 2.\n"
