"""DeepSeek's FP8 functions, beside loops over blocks."""

import pytest
import torch

from genwright.quant.fp8 import quantize


@pytest.mark.parametrize("scale_fmt", [None, "ue8m0"])
@pytest.mark.parametrize("shape", [(3, 256), (2, 5, 128)])
def test_activations_have_a_scale_for_each_block(shape: tuple[int, ...], scale_fmt: str | None) -> None:
    from kernel import act_quant

    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.bfloat16)
    x[0, ..., :128] = 0
    values, scales = act_quant(x, scale_fmt=scale_fmt)
    assert values.dtype == torch.float8_e4m3fn and values.shape == x.shape and scales.dtype == torch.float32
    assert scales.shape == (*shape[:-1], shape[-1] // 128)
    flat, found, each = x.float().flatten(0, -2), values.flatten(0, -2), scales.flatten(0, -2)
    for row in range(len(flat)):
        for block in range(shape[-1] // 128):
            part = flat[row, block * 128 : (block + 1) * 128]
            scale = max(part.abs().max().item(), 1e-4) / 448
            if scale_fmt:
                scale = 2.0 ** torch.tensor(scale).log2().ceil().item()
            assert each[row, block].item() == pytest.approx(scale, rel=1e-6)
            expected = (part / each[row, block]).to(torch.float8_e4m3fn)
            assert torch.equal(found[row, block * 128 : (block + 1) * 128].float(), expected.float())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_weights_and_products(device: str) -> None:
    from kernel import act_quant, fp8_gemm, weight_dequant

    torch.manual_seed(1)
    packed = quantize(torch.randn(200, 384)).map(lambda tensor: tensor.to(device))
    x, scales = act_quant(torch.randn(2, 3, 384).to(device))
    weight = torch.empty(200, 384, device=device)
    for i in range(2):
        for j in range(3):
            block = slice(128 * i, 128 * (i + 1)), slice(128 * j, 128 * (j + 1))
            weight[block] = packed.values[block].float() * packed.scales[i, j]
    assert torch.equal(weight_dequant(packed.values, packed.scales), weight)
    expected = (x.float() * scales.repeat_interleave(128, dim=-1)).double() @ weight.double().t()
    got = fp8_gemm(x, scales, packed.values, packed.scales)
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(AssertionError, match="divisible"):
        act_quant(torch.zeros(2, 100))
