"""The fused image kernels against float64."""

import pytest
import torch
from images.tiny_unet import TINY

from genwright.images.model import blocks
from genwright.images.model.checkpoint import draw_weights

pytestmark = pytest.mark.gpu
SHAPES = [(192, 64, 64), (576, 64, 64), (384, 32, 32), (1536, 8, 8), (96, 5, 7)]


def relative(out, expected):
    return ((out.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("channels", "height", "width"), SHAPES)
@torch.no_grad()
def test_norm_act_equals_float64(channels, height, width, dtype):
    shape = (3, channels, height, width)
    # A mean far from 0 would show cancellation.
    x = (torch.randn(shape, device="cuda") * 2 + 30).to(dtype).to(memory_format=torch.channels_last)
    norm = torch.nn.GroupNorm(32, channels, device="cuda")
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    scale, shift = torch.randn(3, 2 * channels, device="cuda").chunk(2, dim=1)
    for options in (
        {},
        {"add": torch.randn(channels, device="cuda").to(dtype), "scale": scale, "shift": shift},
        {"add": torch.randn(3, channels, device="cuda"), "silu": False},
        {"resampled": "up"},
        *([{"resampled": "down"}] if height % 2 == 0 else []),
    ):
        out = blocks.norm_act(x, norm, **options)
        wide = {key: value.double() if torch.is_tensor(value) else value for key, value in options.items()}
        expected = blocks.norm_act(x.double(), norm.double(), **wide)
        norm.float()
        assert relative(out, expected) < (4e-4 if dtype == torch.float16 else 3e-3)


@pytest.mark.parametrize(("channels", "height", "width"), SHAPES)
@torch.no_grad()
def test_add_residual_equals_float64(channels, height, width):
    h, x = torch.randn(2, 3, channels, height, width, device="cuda", dtype=torch.float16)
    h, x = (t.to(memory_format=torch.channels_last) for t in (h, x))
    bias = torch.randn(channels, device="cuda", dtype=torch.float16)
    expected = h.double() + x.double() + bias.double().view(1, -1, 1, 1)
    assert relative(blocks.add_residual(h, x, bias), expected) < 4e-4


@pytest.mark.parametrize("how", ["up", "down"])
@torch.no_grad()
def test_resample_equals_float64(how):
    x = torch.randn(3, 96, 6, 10, device="cuda").half().to(memory_format=torch.channels_last)
    out = blocks.resample(x, how)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert relative(out, blocks.resample(x.double(), how)) < 4e-4


@torch.no_grad()
def test_unet_in_half_precision_stays_near_float64():
    unet = draw_weights(TINY, 0)
    x, t, labels = torch.randn(4, 3, 16, 16), torch.tensor([-900.0, 0.0, 500.0, 1000.0]), torch.arange(4)
    expected = unet.double()(x.double(), t.double(), labels).cuda()
    out = unet.float().use_dtype(torch.float16).cuda()(x.cuda(), t.cuda(), labels.cuda())
    assert relative(out, expected) < 5e-3
