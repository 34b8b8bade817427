"""LPIPS against piq's on the same random weights."""

import pytest
import torch
from images.piq_stub import vgg16
from torch import nn

from genwright.errors import UserError
from genwright.images.metrics.lpips import WIDTHS, Lpips
from genwright.images.training.losses import loss_norm


@pytest.fixture(scope="module")
def heads():
    return [torch.rand(1, width, 1, 1, generator=torch.Generator().manual_seed(width)) for width in WIDTHS]


@pytest.fixture
def piq_lpips(piq, monkeypatch, heads):
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", lambda *_, **__: heads)
    return piq.LPIPS(replace_pooling=True, reduction="none")


@pytest.fixture
def files(request, tmp_path, heads):
    """The published files: torchvision's, and the heads in one form or the other."""
    torch.save(vgg16().state_dict(), tmp_path / "vgg16-397923af.pth")
    named = {f"lin{stage}.model.1.weight": head for stage, head in enumerate(heads)}
    torch.save(named if request.param == "lpips" else heads, tmp_path / "heads.pth")
    return tmp_path / "vgg16-397923af.pth", tmp_path / "heads.pth"


@pytest.mark.parametrize(("files", "size"), [("lpips", 32), ("piq", 256)], indirect=["files"])
def test_the_distance_is_piqs(piq_lpips, files, size):
    a, b = torch.rand(2, 1, 3, size, size, generator=torch.Generator().manual_seed(1)) * 2 - 1
    shown = [nn.functional.interpolate(x, size=224, mode="bilinear") if size < 256 else x for x in (a, b)]
    expected = piq_lpips(*((x + 1) / 2 for x in shown))
    distance = Lpips.load(files, torch.device("cpu"))
    with torch.no_grad():
        torch.testing.assert_close(distance(a, b), expected, rtol=1e-6, atol=1e-6)
    assert loss_norm("lpips", distance) is distance


@pytest.mark.parametrize("files", ["piq"], indirect=True)
def test_files_of_something_else_are_one_sentence(files, tmp_path):
    with pytest.raises(UserError, match=r"has no lin0\.model\.1\.weight"):
        Lpips.load(files[:1], torch.device("cpu"))
    torch.save({"a": 1}, tmp_path / "numbers.pt")
    with pytest.raises(UserError, match=r"numbers.pt must hold VGG-16's tensors"):
        Lpips.load([tmp_path / "numbers.pt"], torch.device("cpu"))
