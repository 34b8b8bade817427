"""Models and drafts that the tests of this folder share."""

import pytest
import torch
from text.families import make

from genwright import LLM


@pytest.fixture(scope="session")
def llms(tmp_path_factory) -> dict[str, LLM]:
    """The model ("identical"), a draft with partly its weights, and one that knows nothing of it."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("identical", "similar", "unrelated")}
    model = make("llama", folders["identical"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layers.2." in name:
                parameter.mul_(0.8)
    model.save_pretrained(folders["similar"])
    make("llama-mha", folders["unrelated"])
    return {name: LLM(folder, device="cpu", dtype="float32", deterministic=True) for name, folder in folders.items()}
