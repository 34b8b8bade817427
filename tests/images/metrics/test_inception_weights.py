import zlib

import pytest
import torch
from torch import nn

from genwright.errors import UserError
from genwright.images.metrics.inception import Inception, shapes
from genwright.images.metrics.inception_weights import _nvidia_names, load_inception

# Some of NVIDIA's layers, by hand, and what torch-fidelity calls them.
PAIRS = {
    "layers.conv": "Conv2d_1a_3x3",
    "layers.conv_4": "Conv2d_4a_3x3",
    "layers.mixed.conv": "Mixed_5b.branch1x1",
    "layers.mixed.tower.conv_1": "Mixed_5b.branch5x5_2",
    "layers.mixed_2.tower_2.conv": "Mixed_5d.branch_pool",
    "layers.mixed_3.conv": "Mixed_6a.branch3x3",
    "layers.mixed_3.tower.conv_2": "Mixed_6a.branch3x3dbl_3",
    "layers.mixed_7.tower_1.conv_4": "Mixed_6e.branch7x7dbl_5",
    "layers.mixed_8.tower.conv": "Mixed_7a.branch3x3_1",
    "layers.mixed_8.tower_1.conv_3": "Mixed_7a.branch7x7x3_4",
    "layers.mixed_9.tower_mixed_conv_1": "Mixed_7b.branch3x3_2b",
    "layers.mixed_10.tower_1_conv_1": "Mixed_7c.branch3x3dbl_2",
    "layers.mixed_10.tower_1_mixed_conv": "Mixed_7c.branch3x3dbl_3a",
    "layers.mixed_10.tower_2_conv": "Mixed_7c.branch_pool",
}
PARTS = {"weight": "conv.weight", "beta": "bn.bias", "mean": "bn.running_mean", "var": "bn.running_var"}


@pytest.fixture(scope="module")
def state():
    """One number per tensor, which files hold as one number."""
    numbers = {name: 0.5 + zlib.crc32(name.encode()) / 2**33 for name in shapes()}
    numbers |= {name: 1.0 for name in numbers if name.endswith("bn.weight")}
    return {name: torch.tensor(numbers[name]).expand(shape) for name, shape in shapes().items()}


def nvidia(state):
    """The TorchScript archive's module of these weights."""
    ours = {name.removesuffix(".conv.weight"): None for name in state if name.endswith(".conv.weight")}
    tensors = {"output.weight": state["fc.weight"], "output.bias": state["fc.bias"]}
    for theirs, name in zip(_nvidia_names(), ours, strict=True):
        tensors |= {f"{theirs}.{part}": state[f"{name}.{key}"] for part, key in PARTS.items()}
    top = nn.Module()
    for path, tensor in tensors.items():
        module = top
        *parents, last = path.split(".")
        for parent in parents:
            if not hasattr(module, parent):
                module.add_module(parent, nn.Module())
            module = getattr(module, parent)
        module.register_buffer(last, tensor)
    return torch.jit.script(top)


def test_both_published_forms_give_the_same_network(state, tmp_path):
    torch.save(state | {"Conv2d_1a_3x3.bn.num_batches_tracked": torch.tensor(0)}, tmp_path / "pytorch-fid.pth")
    nvidia(state).save(str(tmp_path / "nvidia.pt"))
    expected = Inception(state)
    for name in ("pytorch-fid.pth", "nvidia.pt"):
        found = load_inception(tmp_path / name)
        assert found.weights.keys() == expected.weights.keys()
        for layer in found.weights:
            assert all(torch.equal(a, b) for a, b in zip(found.weights[layer], expected.weights[layer], strict=True))
        assert torch.equal(found.classifier, expected.classifier)


def test_nvidias_names(state):
    ours = [name.removesuffix(".conv.weight") for name in state if name.endswith(".conv.weight")]
    names = dict(zip(_nvidia_names(), ours, strict=True))
    assert {name: names.get(name) for name in PAIRS} == PAIRS


def test_another_archive_is_one_sentence(tmp_path):
    torch.jit.script(nn.Linear(2, 2)).save(str(tmp_path / "linear.pt"))
    with pytest.raises(UserError, match=r"linear\.pt has no output\.weight"):
        load_inception(tmp_path / "linear.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "linear.pt").read_bytes()[:200])
    with pytest.raises(UserError, match=r"cut\.pt"):
        load_inception(tmp_path / "cut.pt")
    with pytest.raises(UserError, match="no checkpoint file"):
        load_inception(tmp_path / "missing.pt")
