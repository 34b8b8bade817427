"""Tiny models and tokenizers of several kinds; where transformers is missing, other tests must still be collected."""

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By family: transformers' model, its safetensors folder, and our logits of that folder."""
    from text.checkpoints.written_formats import make_models

    return make_models(tmp_path_factory)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tokenizer folders, one per kind of decoder."""
    from text.tokenizer.tiny_tokenizers import write_folders

    return write_folders(tmp_path_factory)
