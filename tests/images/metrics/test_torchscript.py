import pickle
import zipfile

import pytest
import torch
from torch import nn

from genwright.images.metrics.torchscript import is_torchscript, read_torchscript


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.arange(6.0).view(2, 3).T)  # not contiguous
        self.inner = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Linear(3, 4).half())
        self.sizes = [1, 2]

    def forward(self, x):
        return x * self.mean


def test_the_tensors_are_the_state_dicts(tmp_path):
    module = Scaled()
    torch.jit.script(module).save(str(tmp_path / "module.pt"))
    torch.save(module.state_dict(), tmp_path / "state.pt")
    assert is_torchscript(tmp_path / "module.pt") and not is_torchscript(tmp_path / "state.pt")
    found, expected = read_torchscript(tmp_path / "module.pt"), module.state_dict()
    assert found.keys() == expected.keys()
    for name in found:
        assert found[name].dtype == expected[name].dtype and torch.equal(found[name], expected[name])


def test_nothing_is_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",)

    with zipfile.ZipFile(tmp_path / "evil.pt", "w") as archive:
        archive.writestr("evil/constants.pkl", b"")
        archive.writestr("evil/data.pkl", pickle.dumps(Evil()))
    with pytest.raises(pickle.UnpicklingError, match=r"builtins\.exec is not allowed"):
        read_torchscript(tmp_path / "evil.pt")
    assert not (tmp_path / "ran").exists()
