"""A repository's interfaces are found, ranked, and written as a manifest that can be read again."""

import json
from pathlib import Path

import pytest
from fixture_cases import PROJECT

from genwright.errors import UserError
from genwright.inspect.analysis.interfaces import document, draft, rank
from genwright.inspect.analysis.manifest import load_manifest, parse_manifest
from genwright.inspect.analysis.repository import Repository


def test_the_border_ranks_first() -> None:
    candidates = rank(Repository(PROJECT))
    first = {c.definition.name for c in candidates[:4]}
    assert {"generate", "Model.generate"} <= first
    names = [c.definition.name for c in candidates]
    assert names.index("generate") < names.index("load_model")
    manifest = draft(Repository(PROJECT), "tinymodel", candidates)
    text = document(manifest, candidates)
    assert "## `Model.generate`" in text and "made by `from_config(config)`" in text and "score" in text
    model = next(i for i in manifest.interfaces if i.name == "Model")
    assert str(model.signature) == "(path, size=2)" and model.files == ("path",)
    assert set(model.factories) == {"from_config", "load_model"}


def test_a_manifest_survives_toml_and_json(tmp_path: Path) -> None:
    manifest = load_manifest(PROJECT / "tinymodel.toml")
    (tmp_path / "m.toml").write_text(manifest.to_toml())
    (tmp_path / "m.json").write_text(json.dumps(manifest.to_dict()))
    assert load_manifest(tmp_path / "m.toml") == load_manifest(tmp_path / "m.json") == manifest


def test_inspections_own_interface_files_are_read(tmp_path: Path) -> None:
    implementation = (
        "class Talker:\n    def __init__(self, voice): ...\n    def say(self, text, *, speed=1): ...\n"
        "    def _hidden(self): ...\ndef load_talker(path): return Talker(path)\ndef other(): ..."
    )
    item = {"Name": "class Talker", "Path": "/srv/talk/pkg/core.py", "Implementation": implementation}
    path = tmp_path / "talk.json"
    path.write_text(json.dumps({"Project_Root": "/srv/talk", "API_Calls": [], "API_Implementations": [item]}))
    manifest = load_manifest(path)
    assert [i.name for i in manifest.interfaces] == ["Talker", "Talker.say"]
    assert manifest.interfaces[0].module == "pkg.core" and list(manifest.interfaces[0].factories) == ["load_talker"]


@pytest.mark.parametrize(
    ("reference", "meant"),
    [
        ("tinymodel.core.Model", True),
        ("tinymodel.Model", True),
        ("core.Model", True),
        ("src.tinymodel.core.Model", True),
        ("other.Model", False),
        ("tinymodel.core.Models", False),
        ("tinymodel.other.Model", False),
    ],
)
def test_which_references_mean_an_interface(reference: str, meant: bool) -> None:
    model = next(i for i in load_manifest(PROJECT / "tinymodel.toml").interfaces if i.name == "Model")
    assert model.named_by(reference) == meant


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({}, "names no interface"),
        ({"project": "p", "interface": [{"module": "m"}]}, "needs a `name`"),
        ({"project": "p", "interface": [{"name": "f", "colour": 1}]}, "unknown key 'colour'"),
        ({"project": "p", "interface": [{"name": "f g"}]}, "not a name that Python could call"),
        ({"project": "p", "interface": [{"name": "f", "kind": "thing"}]}, "kinds are function, method and class"),
        ({"project": "p", "interface": [{"name": "f", "signature": "a b"}]}, "is not Python"),
        ({"project": "../p", "interface": [{"name": "f"}]}, "must be a plain name"),
        ({"project": "p", "interface": [{"name": "f", "files": "x"}]}, "files a list"),
    ],
)
def test_a_wrong_manifest_is_one_sentence(data: dict, told: str) -> None:
    with pytest.raises(UserError) as error:
        parse_manifest(data, "m.toml")
    assert told in str(error.value) and "\n" not in str(error.value)
