"""Malformed manifests, interface files and scenarios: read, or refused in one sentence."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from fixture_cases import PROJECT

from genwright.errors import UserError
from genwright.inspect.analysis.manifest import load_manifest
from genwright.inspect.analysis.scenario import load_scenario

INFO = {
    "Project_Root": "/mnt/model/",
    "API_Implementations": [
        {"Name": "class Model", "Path": "/mnt/model/core.py", "Implementation": "class Model:\n    def run(self): ..."},
        {"Name": "generate", "Path": "/mnt/model/core.py", "Implementation": "def generate(x, n=1): return x"},
    ],
}
MANIFEST = {
    "project": "p",
    "interface": [
        {"name": "generate", "module": "m", "signature": "(x, n=1) -> str", "files": ["x"], "factories": {"a": "(b)"}},
        {"name": "run", "class": "Model", "kind": "method"},
    ],
}
VALUES: list[Any] = [None, True, 7, -1.5, "", "text", "((((" * 200, "\x00", [], [1], {}, {"a": 1}, "9" * 5000, [[]] * 3]


def mutate(data: Any, chance: random.Random) -> Any:
    """The same data with one part replaced by a value of any kind."""
    if not isinstance(data, dict | list) or not data or chance.random() < 0.25:
        return chance.choice(VALUES)
    copy = dict(data) if isinstance(data, dict) else list(data)
    key = chance.choice(list(copy)) if isinstance(copy, dict) else chance.randrange(len(copy))
    copy[key] = mutate(copy[key], chance)
    return copy


@pytest.mark.parametrize("data", [INFO, MANIFEST], ids=["interface file", "manifest"])
def test_mutations_are_read_or_refused_in_one_sentence(data: Any, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    for seed in range(300):
        path.write_text(json.dumps(mutate(data, random.Random(seed))))
        try:
            assert load_manifest(path).interfaces
        except UserError as told:
            assert "\n" not in str(told)[:400] and str(told), seed


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, "x = " + "[" * 10_000, "a = 1\na = 2", '{"a": ' + "9" * 5000 + "}", "\ud800"]
)
def test_what_is_no_data_is_one_sentence(text: str, tmp_path: Path) -> None:
    for name in ("p.json", "p.toml"):
        path = tmp_path / name
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        with pytest.raises(UserError) as told:
            load_manifest(path)
        assert "\n" not in str(told.value) and not str(told.value)[0].islower()
    if text:
        with pytest.raises(UserError):
            load_scenario(path)


def test_a_cut_manifest_is_one_sentence(tmp_path: Path) -> None:
    text = (PROJECT / "tinymodel.toml").read_text()
    for length in range(0, len(text), 37):
        (tmp_path / "m.toml").write_text(text[:length])
        try:
            load_manifest(tmp_path / "m.toml")
        except UserError as told:
            assert "\n" not in str(told)
