"""gpt-fast's scripts: conversion, download, and the evaluation command."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from dropin.gpt_fast.tiny_gpt_fast import SHAPES
from text.families import make

from genwright.dropin.transformer.checkpoint import save_state
from genwright.errors import UserError
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.engine.request import SamplingParams
from genwright.text.export.convert import convert
from genwright.text.llm import LLM


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


def test_a_tied_head_is_written_and_biases_are_refused(tmp_path: Path) -> None:
    from scripts.convert_hf_checkpoint import from_hugging_face

    make("llama", tmp_path / "tied", {"tie_word_embeddings": True})
    state = from_hugging_face(open_checkpoint(str(tmp_path / "tied")))
    assert torch.equal(state["output.weight"], state["tok_embeddings.weight"])
    make("llama-biased", tmp_path / "biased")
    with pytest.raises(UserError, match=r"has biases, .*, which gpt-fast's model\.pth cannot hold\.$"):
        from_hugging_face(open_checkpoint(str(tmp_path / "biased")))


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    def fail(state: object, path: Path) -> None:
        path.touch()
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(UserError, match=r"model\.pth cannot be written; the disk may be full\.$"):
        save_state({}, tmp_path / "model.pth")
    assert not list(tmp_path.iterdir())


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
    with pytest.raises(UserError, match="Tasks need the package lm-eval"):
        evaluation.main(path, compile=True, max_seq_length=64)
    with pytest.raises(UserError, match="Tasks need the package lm-eval"):
        evaluation.eval(None, None)
    with pytest.raises(UserError, match="Tasks need the package lm-eval"):
        from eval import GPTFastEvalWrapper  # noqa: F401


@pytest.fixture
def lm_eval(monkeypatch) -> None:
    """The package's names that the wrapper uses; tests/bench/test_harness.py runs the package itself."""
    names = {"lm_eval": {}, "lm_eval.api": {}, "lm_eval.api.model": {"TemplateLM": type("TemplateLM", (), {})}}
    for name, found in names.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(found)
        monkeypatch.setitem(sys.modules, name, module)


def test_likelihoods_of_modules_are_the_engines(lm_eval, checkpoints: Path) -> None:
    from eval import GPTFastEvalWrapper
    from generate import _load_model
    from tokenizer import get_tokenizer

    from genwright.bench.evaluate import likelihoods

    folder = checkpoints / "tiny"
    words = get_tokenizer(folder / "tokenizer.model")
    model = _load_model(folder / "model.pth", "cpu", torch.float32, False)
    wrapper = GPTFastEvalWrapper(model, words, max_seq_length=16)
    text = "Licensed under the Apache License, Version 2.0; you may not use this file but for what 3 zebras know of it."
    ids = wrapper.tok_encode(text)
    assert wrapper.tok_decode(ids[1:]) == text and ids[0] == words.bos_id() and 34 < len(ids) < 49
    with LLM(folder / "model.pth", device="cpu", dtype="float32", max_context=18) as llm:
        greedy = llm.generate([ids[:4]], SamplingParams(max_new_tokens=2, ignore_eos=True))[0].ids
        pairs = [(ids[:4], greedy), (ids[:3], ids[3:9]), (ids[:25], ids[25:28])]  # the last loses its start
        expected = likelihoods(llm, pairs)
        windows = likelihoods(llm, [(ids[:1], ids[1:17]), (ids[16:17], ids[17:33]), (ids[-17:33], ids[33:])])
    found = wrapper._loglikelihood_tokens([(None, *pair) for pair in pairs])
    assert [value for value, _ in found] == pytest.approx([value for value, _ in expected], abs=1e-3)
    assert [same for _, same in found] == [same for _, same in expected] == [True, False, False]
    rolling = wrapper.loglikelihood_rolling([SimpleNamespace(args=(text,))])
    assert rolling == pytest.approx([sum(value for value, _ in windows)], abs=1e-3)
    with pytest.raises(UserError, match="A task that generates text needs the engine"):
        wrapper.generate_until([])


def test_tasks_are_run_on_modules(lm_eval, checkpoints: Path, monkeypatch) -> None:
    from eval import eval as evaluate
    from generate import _load_model

    seen = []
    harness = SimpleNamespace(evaluate_model=lambda *args, **kwargs: seen.append((args, kwargs)) or {"results": {}})
    monkeypatch.setitem(sys.modules, "genwright.bench.harness", harness)
    model = _load_model(checkpoints / "tiny" / "model.pth", "cpu", torch.float32, False)
    assert evaluate(model, None, ["task"], 3) == {"results": {}}
    ((wrapper, tasks), settings) = seen[0]
    assert (wrapper.max_length, tasks, settings) == (256, ["task"], {"limit": 3})


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
