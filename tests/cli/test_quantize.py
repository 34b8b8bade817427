"""`genwright quantize` as a user meets it."""

import json
from pathlib import Path

import pytest
from cli.test_main import genwright

from genwright.cli.quantize import app
from genwright.errors import UserError

TINY = "random:stories15M,layers=1"


def test_a_folder_is_written_and_opened(tmp_path: Path) -> None:
    done = genwright("quantize", TINY, str(tmp_path / "new"), "--format", "int4:g64:asym")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"Wrote {tmp_path / 'new'}.\n", "")
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert config["quantization_config"] == {
        "quant_method": "genwright",
        "format": "int4:g64:asym",
        "others": {"lm_head.weight": "int8"},
    }
    answer = genwright("generate", "--model", str(tmp_path / "new"), "--prompt-length", "4", "--max-new-tokens", "2")
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--format", "int5"], r"^Weight format 'int5' is unknown; choose int8, int4, "),
        (["--format", "int4:g20"], r"must be a multiple of 8 columns up to 65,536, not 20\.$"),
        (["--method", "awq"], r"^--method must be rtn or gptq, not 'awq'\.$"),
        (["--method", "gptq"], r"^--method gptq and --calibration FILE must be given together\.$"),
        (["--calibration", "x.txt"], r"^--method gptq and --calibration FILE must be given together\.$"),
        (["--method", "gptq", "--calibration", "no-such.txt"], r"^no-such\.txt cannot be read: No such file"),
    ],
)
def test_bad_arguments_are_one_sentence(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        app([TINY, str(tmp_path / "new"), *arguments], standalone_mode=False)
    assert not list(tmp_path.iterdir())


def test_a_folder_is_not_named_as_a_gguf_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x\.gguf must be the name of a folder; `genwright convert --to q4_0` writes"):
        app([TINY, str(tmp_path / "x.gguf")], standalone_mode=False)
    assert not list(tmp_path.iterdir())


def test_what_exists_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"exists already; name a new folder\.$"):
        app([TINY, str(tmp_path)], standalone_mode=False)
