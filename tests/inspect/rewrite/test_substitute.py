"""Samples replace exactly the literals that are listed, and a text with any other change does not pass."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
from fixture_cases import CASES, PROJECT

from genwright.errors import UserError
from genwright.inspect.analysis.analyse import Analysis, analyse
from genwright.inspect.analysis.manifest import load_manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.scenario import Scenario
from genwright.inspect.rewrite.rewrite import rewrite
from genwright.inspect.rewrite.substitute import prove_substitution, substitute

CASE = next(c for c in CASES if c.name == "media_paths")
TAMPERED = [
    ("another literal", '"path/to/model.pth"', "RESOURCES_PATH + 'images/test_image.jpg'"),
    ("another sample", "images/test_image.jpg", "images/test_image.png"),
    ("a prompt", "your favourite picture", "your favourite image"),
    ("a key", '"your image"', '"the image"'),
    ("a name", "describe(medium)", "describe(voice)"),
    ("a lost line", "    describe(medium)", "    pass"),
    ("one back", "RESOURCES_PATH + 'audios/test_audio.mp3'", '"/path/to/your_voice.mp3"'),
]


def analysed(source: str, folder: Path) -> Analysis:
    script = folder / "script.py"
    script.write_text(source)
    return analyse(source, script, load_manifest(PROJECT / "tinymodel.toml"), Repository(folder))


def test_only_what_is_listed_changes() -> None:
    analysis = CASE.rewrite().analysis
    made = substitute(analysis, Scenario())
    before, after = analysis.source.splitlines(), made.text.splitlines()
    changed = [number for number, (old, new) in enumerate(zip(before, after, strict=True), 1) if old != new]
    assert changed == [r.node.lineno for r in made.resources] == [5, 6, 7]


@pytest.mark.parametrize(("what", "old", "new"), TAMPERED, ids=[t[0] for t in TAMPERED])
def test_another_change_is_refused(what: str, old: str, new: str) -> None:
    analysis = CASE.rewrite().analysis
    made = substitute(analysis, Scenario())
    replaced = {r.node: f"RESOURCES_PATH + {r.sample!r}" for r in made.resources}
    prove_substitution(analysis, made.text, replaced)
    assert old in made.text
    with pytest.raises(UserError, match="more than its placeholders"):
        prove_substitution(analysis, made.text.replace(old, new, 1), replaced)


def test_without_samples_nothing_changes() -> None:
    made = rewrite(CASE.script, CASE.manifest, CASE.scenario, Repository(PROJECT), samples=False)
    assert made.prepared is made.analysis and not made.samples.resources and "RESOURCES_PATH" not in made.text


def test_a_script_that_has_the_name_keeps_it(tmp_path: Path) -> None:
    source = 'import cv2\nRESOURCES_PATH = "mine"\ncv2.imread("path/to/image.jpg")\n'
    (tmp_path / "script.py").write_text(source)
    made = rewrite(tmp_path / "script.py", load_manifest(PROJECT / "tinymodel.toml"), Scenario(), Repository(tmp_path))
    assert "import RESOURCES_PATH as INSPECTION_RESOURCES_PATH" in made.text
    assert "cv2.imread(INSPECTION_RESOURCES_PATH + 'images/test_image.jpg')" in made.text


def test_the_scenario_goes_before_samples(tmp_path: Path) -> None:
    analysis = analysed('x = "path/to/image.jpg"; open(x); y = "path/to/model.pth"', tmp_path)
    given = Scenario(resources={"path/to/image.jpg": "/data/ann.jpg", "path/to/model.pth": "/data/model.pth"})
    made = substitute(analysis, given)
    assert ast.dump(ast.parse(made.text)) == ast.dump(ast.parse('x = "/data/ann.jpg"; open(x); y = "/data/model.pth"'))
    assert not made.resources
    with pytest.raises(UserError, match="no text literal"):
        substitute(analysis, replace(given, resources={"elsewhere": "x"}))
