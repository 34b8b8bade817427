"""What the formats cost the default model, in perplexity on a text in the public domain."""

from pathlib import Path

import pytest
import torch
from public_text import public_text

from genwright import LLM
from genwright.bench.evaluate import evaluate
from genwright.quant.formats import parse_format
from genwright.text.checkpoints import open_checkpoint


def perplexity(model: Path, characters: int, **options: str) -> float:
    return evaluate(LLM(model, dtype="float32", **options), public_text(characters), 512, 256).perplexity


@pytest.fixture(scope="module")
def characters(full_size: bool) -> int:
    return 100_000 if full_size else 4_000


@pytest.fixture(scope="module")
def exact(smollm2: Path, characters: int) -> float:
    return perplexity(smollm2, characters)


def test_asymmetric_groups_of_32_lose_nothing_of_this_file(smollm2: Path) -> None:
    """Its matrices are Q4_1: rounding what they widen to finds the same scales, minimums and integers again."""
    checkpoint, form = open_checkpoint(str(smollm2)), parse_format("int4:g32:asym")
    for layer in (0, 17):
        for matrix in ("self_attn.q_proj", "mlp.down_proj"):
            wide = checkpoint.tensor(f"model.layers.{layer}.{matrix}.weight", torch.float32)
            assert torch.equal(form.quantize(wide).dequantize(torch.float32), wide)
    ids = list(range(1000, 1040))
    plain, packed = (LLM(smollm2, dtype="float32", quant=quant).logits(ids) for quant in (None, form.name))
    torch.testing.assert_close(packed, plain, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"quant": "int8"}, 0.01),
        ({"kv": "int8"}, 0.005),
        ({"kv": "int4"}, 0.03),
        # Not within 1 %: e4m3's three bits of mantissa are a coarser grid than int8's; see docs/quantization.md.
        ({"quant": "fp8:channel"}, 0.04),
    ],
)
def test_perplexity_stays_near(
    options: dict[str, str], most: float, smollm2: Path, characters: int, exact: float, full_size: bool
) -> None:
    if not full_size and most > 0.01:
        pytest.skip("too few characters to tell")
    assert perplexity(smollm2, characters, **options) < exact * (1 + most)
