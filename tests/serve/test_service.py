"""The names of the models that are served."""

from pathlib import Path

import pytest

from genwright.serve.server_settings import ServerSettings
from genwright.serve.service import Service
from genwright.text.settings import EngineConfig


def test_a_path_is_served_under_its_last_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path / "model")
    for path in (".", "../model/", str(tmp_path / "model")):
        service = Service(path, EngineConfig(), ServerSettings(images=path))
        assert service.names == ("model",) and service.image_name == "model"
    assert Service("random:llama/1", EngineConfig(), ServerSettings()).names == ("random:llama/1",)
    assert Service(".", EngineConfig(), ServerSettings(model_name=("a", "b"))).names == ("a", "b")
