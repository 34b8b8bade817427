"""The sampling that a checkpoint recommends."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from text.checkpoints.tiny_gguf import tiny_model, write_gguf

from genwright.errors import UserError
from genwright.text.checkpoints.gguf import GGUF
from genwright.text.checkpoints.protocol import Checkpoint
from genwright.text.config_file import FieldReader
from genwright.text.generation_config import recommended_sampling


def read(folder: Path) -> FieldReader:
    return Checkpoint.generation_config(SimpleNamespace(folder=folder))  # type: ignore[arg-type]


QWEN = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        (QWEN, {key: value for key, value in QWEN.items() if key != "do_sample"}),
        (QWEN | {"do_sample": False}, {"repetition_penalty": 1.05}),
        ({"temperature": 0.3, "top_k": -1}, {"temperature": 0.3, "top_k": 0}),
        ({"do_sample": True, "top_p": None}, {"temperature": 1.0}),
        ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
    ],
)
def test_what_a_file_recommends(tmp_path: Path, config: dict[str, Any], expected: dict[str, Any]) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 3, **config}))
    assert recommended_sampling(read(tmp_path)) == expected


def test_no_file_and_a_wrong_one(tmp_path: Path) -> None:
    assert recommended_sampling(read(tmp_path)) == {}
    for wrong in ({"temperature": "hot"}, {"do_sample": "yes"}, {"top_p": 7}):
        (tmp_path / "generation_config.json").write_text(json.dumps(wrong))
        with pytest.raises(UserError, match=r"generation_config\.json.*(temperature|do_sample|top_p)"):
            recommended_sampling(read(tmp_path))


def test_what_a_gguf_file_recommends(tmp_path: Path) -> None:
    metadata = {"general__sampling__temp": 0.5, "general__sampling__penalty_repeat": 1.5, "general__sampling__top_k": 7}
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), **metadata)
    expected = {"temperature": 0.5, "repetition_penalty": 1.5, "top_k": 7}
    assert recommended_sampling(GGUF(path).generation_config()) == expected
