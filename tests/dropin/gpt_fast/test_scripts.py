"""gpt-fast's scripts: conversion, download, and the evaluation command."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from dropin.gpt_fast.tiny_gpt_fast import SHAPES

from genwright.errors import UserError
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.export.convert import convert


@pytest.fixture(autouse=True)
def shapes(gpt_fast) -> None:
    from model import transformer_configs

    transformer_configs.update(SHAPES)


@pytest.mark.parametrize("name", ["tiny", "tiny-moe"])
def test_a_hugging_face_folder_becomes_model_pth(checkpoints: Path, tmp_path: Path, name: str, capsys) -> None:
    from scripts.convert_hf_checkpoint import convert_hf_checkpoint

    source = checkpoints / name / "model.pth"
    convert(open_checkpoint(str(source)), tmp_path / name, "safetensors", None, lambda done, total: None)
    (tmp_path / name / "original").mkdir()
    (tmp_path / name / "original" / "tokenizer.model").write_bytes(b"words")
    convert_hf_checkpoint(checkpoint_dir=tmp_path / name)
    expected, found = (torch.load(path, weights_only=True) for path in (source, tmp_path / name / "model.pth"))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert (tmp_path / name / "tokenizer.model").read_bytes() == b"words"
    assert "Saving checkpoint to" in capsys.readouterr().out


def test_mixtrals_own_files_become_model_pth(checkpoints: Path, tmp_path: Path) -> None:
    from scripts.convert_hf_checkpoint import convert_hf_checkpoint

    expected = torch.load(checkpoints / "tiny-moe" / "model.pth", weights_only=True)
    consolidated = {}
    for key, tensor in expected.items():
        if "wqkv" in key:
            for part, rows in zip("qkv", tensor.split([64, 32, 32]), strict=True):
                consolidated[key.replace("wqkv", f"w{part}")] = rows.clone()
        elif "cond_ffn" in key:
            rows = tensor.transpose(1, 2) if key.endswith("w2") else tensor
            consolidated[key.replace("cond_ffn.", "")] = rows.flatten(0, 1).clone()
        else:
            consolidated[key] = tensor
    names = list(consolidated)
    for number, part in enumerate((names[::2], names[1::2])):
        torch.save({key: consolidated[key] for key in part}, tmp_path / f"consolidated.{number:02}.pt")
    convert_hf_checkpoint(checkpoint_dir=tmp_path, model_name="tiny-moe")
    found = torch.load(tmp_path / "model.pth", weights_only=True)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_a_folder_that_is_missing_is_one_sentence() -> None:
    from scripts.convert_hf_checkpoint import convert_hf_checkpoint

    with pytest.raises(UserError, match="There is no folder none"):
        convert_hf_checkpoint(checkpoint_dir=Path("none"))


def test_downloads_go_to_the_folder_checkpoints(tmp_path: Path, monkeypatch) -> None:
    from scripts.download import hf_download

    calls = []
    hub = SimpleNamespace(snapshot_download=lambda *args, **kwargs: calls.append((args, kwargs)))
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    monkeypatch.chdir(tmp_path)
    hf_download("org/name", "secret")
    assert calls == [(("org/name",), {"local_dir": Path("checkpoints/org/name"), "token": "secret"})]

    def offline(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(hub, "snapshot_download", offline)
    with pytest.raises(UserError, match="'org/name' could not be fetched from the hub: no network; private"):
        hf_download("org/name")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match="Downloads need the package huggingface_hub"):
        hf_download("org/name")


def test_tasks_need_their_package(checkpoints: Path, monkeypatch) -> None:
    import eval as evaluation

    path = checkpoints / "tiny" / "model.pth"
    monkeypatch.setattr(evaluation, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="--tasks needs the package lm-eval"):
        evaluation.main(path, compile=True, max_seq_length=64)


def test_tasks_are_run_by_the_engine(checkpoints: Path, monkeypatch, capsys) -> None:
    import eval as evaluation

    seen = []
    monkeypatch.setattr(evaluation, "find_spec", lambda name: name)
    harness = SimpleNamespace(
        run_tasks=lambda llm, *rest: seen.append((llm.max_context, rest[:3])) or {"task": {"x": 1}}
    )
    monkeypatch.setitem(sys.modules, "genwright.bench.harness", harness)
    evaluation.main(checkpoints / "tiny" / "model.pth", tasks=("task",), limit=3, max_seq_length=64)
    assert seen == [(64, (["task"], None, 3))]
    assert capsys.readouterr().out.endswith("task: {'x': 1}\n")
