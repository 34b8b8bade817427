"""`genwright convert` as a user meets it."""

import json
from pathlib import Path

import pytest
import torch
from cli.test_main import genwright
from safetensors.torch import load_file
from text.families import make

from genwright import LLM
from genwright.cli.convert import app
from genwright.errors import UserError

TINY = "random:stories15M,layers=1"


def test_there_and_back(tmp_path: Path) -> None:
    done = genwright("convert", TINY, str(tmp_path / "pth"), "--to", "gptfast", "--dtype", "float32")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"Wrote {tmp_path / 'pth'}.\n", "")
    assert sorted(path.name for path in (tmp_path / "pth").iterdir()) == ["config.json", "model.pth"]
    app([str(tmp_path / "pth"), str(tmp_path / "new")], standalone_mode=False)
    assert json.loads((tmp_path / "new" / "config.json").read_text())["torch_dtype"] == "float32"  # as stored
    ids = [1, 2, 3]
    expected = LLM(TINY, dtype="float32").logits(ids)
    assert torch.equal(LLM(tmp_path / "pth", dtype="float32").logits(ids), expected)
    assert torch.equal(LLM(tmp_path / "new", dtype="float32").logits(ids), expected)


def test_the_default_model_becomes_a_folder(smollm2: Path, tmp_path: Path) -> None:
    """Its tokenizer and chat template come along: the folder answers as the file does."""
    app([str(smollm2), str(tmp_path / "new"), "--dtype", "bfloat16"], standalone_mode=False)
    tensors = load_file(tmp_path / "new" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ours, theirs = (LLM(path, dtype="bfloat16", backend="torch") for path in (tmp_path / "new", smollm2))
    assert ours.encode_chat(messages) == theirs.encode_chat(messages)
    assert ours.eos_ids == theirs.eos_ids
    assert torch.equal(ours.logits([1, 2, 3]), theirs.logits([1, 2, 3]))


def test_a_gguf_file(tmp_path: Path) -> None:
    app([TINY, str(tmp_path / "new.gguf"), "--to", "gguf", "--dtype", "float32"], standalone_mode=False)
    ids = [1, 2, 3]
    assert torch.equal(LLM(tmp_path / "new.gguf", dtype="float32").logits(ids), LLM(TINY, dtype="float32").logits(ids))


def test_deepseeks_shards_and_back(tmp_path: Path) -> None:
    make("deepseek-v3-blocks", tmp_path / "hf")
    app([str(tmp_path / "hf"), str(tmp_path / "mp"), "--model-parallel", "2"], standalone_mode=False)
    files = {"config.json", "config_mp2.json", "generation_config.json"}
    files |= {f"model{rank}-mp2.safetensors" for rank in range(2)}
    assert {path.name for path in (tmp_path / "mp").iterdir()} == files
    app([str(tmp_path / "mp"), str(tmp_path / "back")], standalone_mode=False)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("hf", "back"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "Missing argument 'SRC'"),
        ([TINY], 2, "Missing argument 'DST'"),
        ([TINY, "new", "--no-such-flag"], 2, "--no-such-flag"),
        (["no-such-folder", "new"], 1, "There is no file or folder no-such-folder; `genwright pull` lists"),
    ],
    ids=["no source", "no target", "no such flag", "no such folder"],
)
def test_exit_codes(arguments: list[str], code: int, words: str) -> None:
    done = genwright("convert", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr and "Traceback" not in done.stderr
    if code == 1:
        assert done.stderr.startswith("genwright: ") and done.stderr.endswith(".\n") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([TINY, "."], "exists already; name a new folder."),
        (
            [TINY, "new", "--to", "onnx"],
            "The format must be one of safetensors, bf16, gptfast, deepseek, gguf, q8_0, q4_0, q4_1, not 'onnx'.",
        ),
        ([TINY, ".", "--to", "q8_0"], "exists already; name a new file."),
        ([TINY, "new", "--dtype", "int8"], "dtype must be auto, float32, float16 or bfloat16, not 'int8'."),
        (["/dev/null", "new"], "/dev/null holds no checkpoint of a known format"),
        (["random:qwen3-0.6b,layers=1", "new", "--to", "gptfast"], "has biases, q and k norms"),
        ([TINY, "new", "--to", "bf16", "--dtype", "float16"], "it cannot be used with --dtype."),
        ([TINY, "new.gguf"], "--to safetensors writes a folder, but new.gguf is the name of a file; pass --to gguf."),
        ([TINY, "new.GGUF", "--model-parallel", "2"], "--to deepseek writes a folder, but new.GGUF is the name"),
        ([TINY, "new.gguf", "--to", "onnx"], "The format must be one of"),
        ([TINY, "new", "--model-parallel", "2"], "is not a DeepSeek model"),
        ([TINY, "new", "--model-parallel", "2", "--to", "bf16"], "it cannot be used with --to bf16."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes(arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        app(arguments, standalone_mode=False)
    assert words in str(error.value) and str(error.value).endswith(".") and "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_nothing_that_exists_is_overwritten(form: str, tmp_path: Path) -> None:
    """The place of the unfinished target may be taken, even by the checkpoint that is converted."""
    source = tmp_path / "new.part"
    app([TINY, str(source), "--to", form], standalone_mode=False)
    before = LLM(source, dtype="float32").logits([1, 2, 3])
    with pytest.raises(UserError, match=r"new\.part exists already; delete it unless another process is writing it"):
        app([str(source), str(tmp_path / "new"), "--to", form], standalone_mode=False)
    assert [path.name for path in tmp_path.iterdir()] == ["new.part"]
    assert torch.equal(LLM(source, dtype="float32").logits([1, 2, 3]), before)


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
@pytest.mark.parametrize(("target", "why"), [("file/new", "Not a directory"), ("n" * 300, "File name too long")])
def test_a_place_that_cannot_be_written(form: str, target: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"cannot be written: {why}\\.$"):
        app([TINY, str(tmp_path / target), "--to", form], standalone_mode=False)
