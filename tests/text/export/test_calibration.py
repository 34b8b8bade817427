"""GPTQ of whole models: better than rounding to nearest, for dense layers and experts."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from text.families import make

from genwright import LLM
from genwright.errors import UserError
from genwright.quant.formats import parse_format
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.export.calibration import MIN_TOKENS, WINDOWS, calibrated, calibration_windows
from genwright.text.export.quantize import quantize

CPU, FORM = torch.device("cpu"), parse_format("int4:g64:asym")


def windows(count: int, size: int, vocab: int) -> list[list[int]]:
    return torch.randint(3, vocab, (count, size), generator=torch.Generator().manual_seed(0)).tolist()


def write(source: str, target: Path, texts: list[list[int]] | None) -> None:
    checkpoint = open_checkpoint(source)
    layers = None if texts is None else calibrated(checkpoint, FORM, texts, CPU)
    quantize(checkpoint, target, FORM, CPU, lambda done, total: None, layers)


def test_logits_are_nearer_than_rounding_to_nearest(tmp_path: Path) -> None:
    model = "random:stories15M,layers=1"
    write(model, tmp_path / "gptq", windows(8, 64, 40))  # a language of few words
    write(model, tmp_path / "rtn", None)
    ids = torch.randint(3, 40, (100,), generator=torch.Generator().manual_seed(1)).tolist()  # others
    exact = LLM(model, dtype="float32")
    errors = []
    for name in ("gptq", "rtn"):
        llm = LLM(tmp_path / name, dtype="float32")
        llm.model.outer["head"] = exact.model.outer["head"]  # rounded to nearest in both: leave its error out
        errors.append((llm.logits(ids) - exact.logits(ids)).norm().item())
    assert errors[0] < 0.95 * errors[1], errors


@pytest.mark.parametrize("family", ["llama", "mixtral", "qwen2-moe", "deepseek-v3", "opt-350m"])
def test_every_matrix_of_a_layer_is_calibrated(family: str, tmp_path: Path) -> None:
    make(family, tmp_path / "hf")
    write(str(tmp_path / "hf"), tmp_path / "gptq", windows(6, 70, 199))
    write(str(tmp_path / "hf"), tmp_path / "rtn", None)
    gptq, rtn = (load_file(tmp_path / name / "model.safetensors") for name in ("gptq", "rtn"))
    assert gptq.keys() == rtn.keys()
    words = [name for name in gptq if name.endswith(".words") and ".layers." in name]
    changed = [name for name in words if not torch.equal(gptq[name], rtn[name])]
    assert len(changed) > 0.9 * len(words)  # an expert that no token visited is rounded to nearest
    assert all(torch.equal(gptq[name], rtn[name]) for name in gptq if not name.endswith(".words"))
    assert LLM(tmp_path / "gptq", dtype="float32").logits([1, 5, 9]).isfinite().all()


def test_progress_counts_the_runs_of_windows_through_layers() -> None:
    told: list[tuple[int, int]] = []
    checkpoint = open_checkpoint("random:stories15M,layers=2")
    layers = calibrated(checkpoint, FORM, windows(3, 64, 40), CPU, lambda *call: told.append(call))
    assert told == []
    next(layers)
    assert told == [(run, 12) for run in range(1, 7)]
    assert len(list(layers)) == 1 and told[6:] == [(run, 12) for run in range(7, 13)]


def test_windows_come_from_all_over_a_text(smollm2: Path) -> None:
    checkpoint = open_checkpoint(str(smollm2))
    found = calibration_windows(checkpoint, "".join(f"number {i}, " for i in range(9000)))
    assert len(found) == WINDOWS and {len(window) for window in found} == {512}
    tokenizer = checkpoint.tokenizer()
    assert tokenizer is not None
    assert "number 1," in tokenizer.decode(found[0]) and "number 88" in tokenizer.decode(found[-1])
    with pytest.raises(UserError, match=rf"has 2 tokens; GPTQ needs at least {MIN_TOKENS}\.$"):
        calibration_windows(checkpoint, "Too short")
    with pytest.raises(UserError, match=r"has no tokenizer"):
        calibration_windows(open_checkpoint("random:stories15M,layers=1"), "text")
