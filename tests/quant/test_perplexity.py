"""The formats' loss in perplexity of the default model, on a text in the public domain."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from public_text import other_text, public_text

from genwright import LLM
from genwright.bench.evaluate import evaluate
from genwright.quant.formats import parse_format
from genwright.text.architectures.registry import architecture
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.export.calibration import calibrated, calibration_windows
from genwright.text.export.quantize import quantize


def perplexity(model: Path, characters: int, **options: Any) -> float:
    return evaluate(LLM(model, dtype="float32", **options), public_text(characters), 1024, 1000).perplexity


@pytest.fixture(scope="module")
def characters(full_size: bool) -> int:
    return 100_000 if full_size else 4_000


@pytest.fixture(scope="module")
def exact(smollm2: Path, characters: int) -> float:
    return perplexity(smollm2, characters)


def test_asymmetric_groups_of_32_lose_nothing_of_this_file(smollm2: Path) -> None:
    """Its matrices are Q4_1, so quantizing their floats gives the same scales, minimums and integers."""
    checkpoint, form = open_checkpoint(str(smollm2)), parse_format("int4:g32:asym")
    for layer in (0, 17):
        for matrix in ("self_attn.q_proj", "mlp.down_proj"):
            wide = checkpoint.tensor(f"model.layers.{layer}.{matrix}.weight", torch.float32)
            assert torch.equal(form.quantize(wide).dequantize(torch.float32), wide)
    ids = list(range(1000, 1040))
    plain, packed = (LLM(smollm2, dtype="float32", quant=quant).logits(ids) for quant in (None, form.name))
    torch.testing.assert_close(packed, plain, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "most"), [({"quant": "int8"}, 0.01), ({"kv": "int8"}, 0.005), ({"kv": "int4"}, 0.03)]
)
def test_perplexity_stays_near(
    options: dict[str, str], most: float, smollm2: Path, characters: int, exact: float, full_size: bool
) -> None:
    if not full_size and most > 0.01:
        pytest.skip("too few characters to tell")
    assert perplexity(smollm2, characters, **options) < exact * (1 + most)


@pytest.mark.parametrize("quant", [None, "int8", "int4:g64:asym"])
def test_rounded_inputs_change_less_than_a_thousandth(
    quant: str | None, smollm2: Path, characters: int, full_size: bool
) -> None:
    """What a CPU rounds by default; without a quant, the file's own types."""
    if quant is not None and not full_size:
        pytest.skip("more evaluations")
    settings = {} if quant is None else {"quant": quant}
    rounded, exact = (perplexity(smollm2, characters, exact_inputs=given, **settings) for given in (False, True))
    assert abs(rounded / exact - 1) < 0.001


def windows(model: Path) -> list[list[int]]:
    return calibration_windows(open_checkpoint(str(model)), other_text())


def test_gptq_changes_the_first_layer_less_than_rounding(smollm2: Path) -> None:
    """On another text than the calibration text."""
    checkpoint, llm = open_checkpoint(str(smollm2)), LLM(smollm2, dtype="float32", backend="torch")
    ids = calibration_windows(checkpoint, public_text(10_000))[0][:160]
    exact, layer, wide = llm.logits(ids), llm.model.blocks[0], dict(llm.model.blocks[0])
    sources = architecture(checkpoint.config).weight_map(checkpoint.config).block(0)
    for form in map(parse_format, ("fp8:channel", "int4:g64:asym")):
        gptq, errors = next(calibrated(checkpoint, form, windows(smollm2)[:5], torch.device("cpu"))), []
        for way in ("nearest", "gptq"):
            for name in ("qkv", "out", "gate_up", "down"):
                rows = wide[name].split([source.shape[0] for source in sources[name]])
                packed = [gptq[source.name] for source in sources[name]] if way == "gptq" else map(form.quantize, rows)
                layer[name] = torch.cat([part.dequantize(torch.float32) for part in packed])
            errors.append((llm.logits(ids) - exact).norm().item())
        assert errors[1] < 0.85 * errors[0], errors


@pytest.fixture(scope="module")
def gptq(smollm2: Path, full_size: bool, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    if not full_size:
        pytest.skip("minutes of rounding")

    def pack(form: str) -> Path:
        checkpoint, cpu, folder = open_checkpoint(str(smollm2)), torch.device("cpu"), tmp_path_factory.mktemp("gptq")
        layers = calibrated(checkpoint, parse_format(form), windows(smollm2), cpu)
        quantize(checkpoint, folder / "packed", parse_format(form), cpu, lambda done, total: None, layers)
        return folder / "packed"

    return pack


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("form", ["fp8", "fp8:channel"])
def test_fp8_by_gptq_stays_within_one_percent(
    form: str, gptq: Callable[[str], Path], characters: int, exact: float
) -> None:
    """Rounding to nearest does not; see docs/quantization.md."""
    assert perplexity(gptq(form), characters) < exact * 1.01


@pytest.mark.timeout(1800)
def test_gptq_is_clearly_better_than_rounding(
    gptq: Callable[[str], Path], smollm2: Path, characters: int, exact: float
) -> None:
    form = "int4:g64:asym"
    nearest = perplexity(smollm2, characters, quant=form)
    assert perplexity(gptq(form), characters) - exact < 0.6 * (nearest - exact)
