"""OPT's shapes in FlexLLMGen's words, and folders of arrays from Hugging Face folders."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from dropin.flexllmgen.tiny_opt import write_tokenizer

from genwright import LLM
from genwright.errors import UserError


def test_shapes_have_flexllmgens_names_and_sizes() -> None:
    from flexllmgen.opt_config import get_opt_config

    config = get_opt_config("facebook/opt-30b")
    assert (config.name, config.num_hidden_layers, config.n_head, config.input_dim) == ("opt-30b", 48, 56, 7168)
    assert (config.ffn_embed_dim, config.vocab_size, config.max_seq_len) == (4 * 7168, 50272, 2048)
    assert config.model_bytes() == 2 * (48 * (12 * 7168**2 + 11 * 7168) + 50272 * 7169)
    assert config.cache_bytes(4, 544) == 4 * 544 * 48 * 7168 * 2 * 2
    assert config.hidden_bytes(4, 544) == 4 * 544 * 7168 * 2
    assert get_opt_config("facebook/opt-iml-max-30b").input_dim == 7168
    assert get_opt_config("opt-175b-stage").num_hidden_layers == 24
    assert get_opt_config("facebook/galactica-30b").vocab_size == 50000
    assert get_opt_config("opt-125m", dtype=np.float32).dtype is np.float32


@pytest.mark.parametrize(("name", "words"), [("opt-7b", "did you mean opt"), ("llama-2-7b", "not an OPT model")])
def test_other_models_are_refused(name: str, words: str) -> None:
    from flexllmgen.opt_config import get_opt_config

    with pytest.raises(UserError, match=words):
        get_opt_config(name)


def test_a_hugging_face_folder_becomes_arrays(tiny, tmp_path: Path) -> None:
    from flexllmgen.opt_config import download_opt_weights, open_weights

    tiny.model.half().save_pretrained(tmp_path / "tiny")
    tiny.model.float()
    write_tokenizer(tmp_path / "tiny")
    download_opt_weights("facebook/tiny", str(tmp_path))
    written = tmp_path / "tiny-np"
    for path in (tiny.path / "tiny-np").iterdir():
        assert (np.load(written / path.name) == np.load(path)).all()
    with open_weights(tiny.config(), str(tmp_path)) as model, LLM(model, device="cpu") as llm:
        assert llm.tokenizer is not None
        assert llm.generate([[5, 6]])[0].ids


def test_arrays_without_a_configuration_have_that_of_the_caller(tiny) -> None:
    from flexllmgen.opt_config import open_weights

    with open_weights(tiny.config(), str(tiny.path)) as model:
        folder = Path(model)
        assert LLM(folder, device="cpu").model.cfg.layers == 3
    assert not folder.exists()
    assert not (tiny.path / "tiny-np" / "config.json").exists()


def test_dummy_weights_are_random_ones_of_the_shape(tiny) -> None:
    from flexllmgen.opt_config import get_opt_config, open_weights

    for name, model in {
        "opt-iml-30b": "random:opt-30b,layers=48",
        "opt-175b-stage": "random:opt-175b,layers=24",
    }.items():
        with open_weights(get_opt_config(name), "_DUMMY_") as found:
            assert found == model
    with pytest.raises(UserError, match="no model shape named 'tiny'"), open_weights(tiny.config(), "_DUMMY_"):
        pass
    wide = get_opt_config("opt-125m", input_dim=1024)
    with pytest.raises(UserError, match="only its layers may differ"), open_weights(wide, "_DUMMY_"):
        pass


def test_the_counts_are_the_originals(original: Path) -> None:
    from flexllmgen.opt_config import get_opt_config

    theirs = runpy.run_path(str(original / "flexllmgen" / "opt_config.py"))["get_opt_config"]
    for name in ("opt-125m", "opt-1.3b", "opt-2.7b", "opt-6.7b", "opt-13b", "opt-30b", "opt-66b", "opt-175b"):
        ours, other = get_opt_config(f"facebook/{name}"), theirs(f"facebook/{name}")
        assert vars(ours) == vars(other)
        assert ours.model_bytes() == other.model_bytes()
        assert ours.cache_bytes(3, 100) == other.cache_bytes(3, 100)
        assert ours.hidden_bytes(3, 100) == other.hidden_bytes(3, 100)
