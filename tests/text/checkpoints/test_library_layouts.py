"""Quantized matrices as the libraries themselves write and dequantize them; each test needs its library installed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from text.checkpoints.library_folders import SIZES
from text.families import make

from genwright.text.architectures.config_fields import LIBRARIES
from genwright.text.checkpoints.library_layouts import LAYOUTS
from genwright.text.checkpoints.open import open_checkpoint

STEM = "model.layers.0.mlp.down_proj"
SHAPE = (128, 192)


def read(folder: Path, method: str, stored: Mapping[str, torch.Tensor], metadata: dict[str, str]) -> torch.Tensor:
    """Our reading of a folder in which one matrix is stored as these tensors, by the ends of their names."""
    model = make("llama", folder, SIZES)
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name != f"{STEM}.weight"}
    tensors |= {f"{STEM}.{end}": tensor.contiguous() for end, tensor in stored.items()}
    save_file(tensors, folder / "model.safetensors", metadata)
    config = {**model.config.to_dict(), "quantization_config": {"quant_method": method}}
    (folder / "config.json").write_text(json.dumps(config))
    checkpoint = open_checkpoint(str(folder))
    ours = checkpoint.tensor(f"{STEM}.weight", torch.float32)
    if checkpoint.format(f"{STEM}.weight") is not None:
        packed = checkpoint.packed(f"{STEM}.weight").dequantize(torch.float32)
        torch.testing.assert_close(packed, ours, rtol=1e-6, atol=1e-7)  # scales in float32 are rounded once more
    return ours


def weight() -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)) / 10


def test_every_library_has_a_layout() -> None:
    assert tuple(LAYOUTS) == LIBRARIES


@pytest.mark.parametrize(
    ("form", "arguments"),
    [
        ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": True}),
        ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False}),
        ("pack-quantized", {"num_bits": 4, "strategy": "channel", "symmetric": False}),
        ("pack-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": True}),
        ("int-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": True}),
        ("int-quantized", {"num_bits": 8, "strategy": "tensor", "symmetric": True}),
        ("naive-quantized", {"num_bits": 8, "strategy": "tensor", "type": "float"}),
        ("naive-quantized", {"num_bits": 8, "strategy": "channel", "type": "float"}),
        ("float-quantized", {"num_bits": 8, "strategy": "block", "block_structure": [128, 128], "type": "float"}),
    ],
)
def test_compressed_tensors(form: str, arguments: dict[str, Any], tmp_path: Path) -> None:
    quantization = pytest.importorskip("compressed_tensors.quantization")
    compressor = pytest.importorskip("compressed_tensors.compressors").BaseCompressor.get_value_from_registry(form)
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=quantization.QuantizationArgs(**arguments))
    whole, strategy = weight(), arguments["strategy"]
    if strategy == "block":
        scales = torch.rand(1, 2) / 1000 + 1e-3
        state = {"weight": whole, "weight_scale": scales}
    else:
        groups = whole.unflatten(1, (-1, arguments.get("group_size", SHAPE[1])))
        low, high = groups.amin(-1), groups.amax(-1)
        if strategy == "tensor":
            low, high = low.min()[None], high.max()[None]
        scales, zeros = quantization.utils.calculate_qparams(low, high, scheme.weights)
        state = {"weight": whole, "weight_scale": scales, "weight_zero_point": zeros}
    stored = compressor.compress(state, scheme)
    expected = compressor.decompress(stored, scheme)["weight"]
    torch.testing.assert_close(read(tmp_path, "compressed-tensors", stored, {}), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_bitsandbytes(kind: str, double: bool, tmp_path: Path) -> None:
    functional = pytest.importorskip("bitsandbytes").functional
    packed, state = functional.quantize_4bit(weight(), quant_type=kind, compress_statistics=double)
    stored = {"weight": packed, **{f"weight.{end}": tensor for end, tensor in state.as_dict(packed=True).items()}}
    expected = functional.dequantize_4bit(packed, state)
    torch.testing.assert_close(read(tmp_path, "bitsandbytes", stored, {}), expected, rtol=1e-6, atol=1e-8)


def test_bitsandbytes_int8(tmp_path: Path) -> None:
    functional = pytest.importorskip("bitsandbytes").functional
    q, scb, _ = functional.int8_vectorwise_quant(weight().half())
    expected = functional.int8_vectorwise_dequant(q, scb)
    torch.testing.assert_close(read(tmp_path, "bitsandbytes", {"weight": q, "SCB": scb}, {}), expected)


@pytest.mark.parametrize("name", ["Int8WeightOnlyConfig", "IntxWeightOnlyConfig", "Float8WeightOnlyConfig"])
def test_torchao(name: str, tmp_path: Path) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    support = pytest.importorskip("torchao.prototype.safetensors.safetensors_support")
    settings: dict[str, Any] = {"version": 2} if name.startswith(("Int8", "Float8")) else {}
    if name.startswith("Intx"):
        settings = {"weight_dtype": torch.int4, "granularity": quantization.PerGroup(32)}
    linear = torch.nn.Linear(SHAPE[1], SHAPE[0], bias=False)
    linear.weight = torch.nn.Parameter(weight())
    quantization.quantize_(linear, getattr(quantization, name)(**settings))
    tensors, metadata = support.flatten_tensor_state_dict({f"{STEM}.weight": linear.weight.data})
    stored = {end.removeprefix(f"{STEM}."): tensor for end, tensor in tensors.items()}
    torch.testing.assert_close(read(tmp_path, "torchao", stored, metadata), linear.weight.dequantize())
