"""DeepSeek's convert and fp8_cast_bf16; `test_original.py` compares their files with the original's."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from text.deepseek_folders import with_draft
from text.families import make

from genwright.errors import UserError
from genwright.quant.fp8 import Fp8Blocks


def test_the_multi_token_prediction_layer_is_left_out(tmp_path: Path) -> None:
    from convert import main

    make("deepseek-v3-blocks", tmp_path / "hf")
    with_draft(tmp_path / "hf")
    with pytest.raises(UserError, match=r"has \d+ experts, but --n-experts is 3"):
        main(str(tmp_path / "hf"), str(tmp_path / "mp"), 3, 1)
    experts = 8
    main(str(tmp_path / "hf"), str(tmp_path / "mp"), experts, 1)
    names = load_file(tmp_path / "mp" / "model0-mp1.safetensors")
    assert any(name.startswith("layers.2.") for name in names)
    assert not any(name.startswith("layers.3.") for name in names)


def test_fp8_becomes_bfloat16(checkpoints: Path, tmp_path: Path) -> None:
    from fp8_cast_bf16 import main

    main(str(checkpoints / "v3"), str(tmp_path / "bf16"))
    before = load_file(checkpoints / "v3" / "model.safetensors")
    after = load_file(tmp_path / "bf16" / "model.safetensors")
    assert after.keys() == {name for name in before if not name.endswith("_scale_inv")}
    for name, tensor in after.items():
        expected = before[name]
        if f"{name}_scale_inv" in before:
            expected = Fp8Blocks(expected, before[f"{name}_scale_inv"]).dequantize(torch.bfloat16)
        assert torch.equal(tensor, expected), name
