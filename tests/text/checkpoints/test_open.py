"""What a name, a file or a folder is opened as; the formats have tests of their own."""

from pathlib import Path

import pytest
import torch
from text.checkpoints.test_gguf import write_parts
from text.checkpoints.tiny_gguf import tiny_model, write_gguf
from text.families import make

from genwright.errors import UserError
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.export.convert import convert

TINY = "random:stories15M,layers=1"


def write_gptfast(folder: Path) -> Path:
    convert(open_checkpoint(TINY), folder, "gptfast", torch.float32, lambda done, total: None)
    return folder / "model.pth"


def test_an_empty_name_is_not_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model("llama"))
    monkeypatch.chdir(tmp_path)
    assert open_checkpoint(".").path == "model.gguf"
    with pytest.raises(UserError, match=r"^The model's name is empty; pass a folder, a file or a name that `genwright"):
        open_checkpoint("")


@pytest.mark.parametrize("name", ["model.gguf", "model.safetensors"])
def test_an_empty_file_is_told_as_such(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(UserError, match=rf"/{name} is empty; download or copy it again\.$"):
        open_checkpoint(str(tmp_path / name))


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (("b.gguf", "a.gguf"), r" holds 2 models, such as a\.gguf, b\.gguf; pass the path of one of them\.$"),
        (("d.gguf", "c.gguf", "b.gguf", "a.gguf"), r" holds 4 models, such as a\.gguf, b\.gguf, c\.gguf; "),
        (
            ("a.gguf", "b-00002-of-00002.gguf", "b-00001-of-00002.gguf"),
            r" holds 2 models, such as a\.gguf, b-00001-of-00002\.gguf; ",
        ),
        (
            ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "a-00001-of-00003.gguf"),
            r" holds 2 models, such as a-00001-of-00002\.gguf, a-00001-of-00003\.gguf; ",
        ),
    ],
    ids=["two", "more than are named", "a split one", "two split ones"],
)
def test_several_models_in_a_folder_are_not_chosen_from(names: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(UserError, match=sentence):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("beside", ["a-mmproj-F16.gguf", "mmproj.gguf"])
def test_an_image_encoder_beside_a_model_is_not_taken_for_one(beside: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "llama.gguf", tiny_model("llama"))
    (tmp_path / beside).write_bytes(b"GGUF")
    assert open_checkpoint(str(tmp_path)).path == str(path)


def test_a_link_to_nothing_is_told_as_one(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").symlink_to("gone.gguf")
    with pytest.raises(UserError, match=r"model\.gguf is a link to gone\.gguf, which does not exist; download"):
        open_checkpoint(str(tmp_path / "model.gguf"))


def test_a_split_model_is_one_model(tmp_path: Path) -> None:
    whole, parts = write_parts(tmp_path)
    with pytest.raises(UserError, match=r"holds 2 models, such as tiny-00001-of-00003\.gguf, whole\.gguf; "):
        open_checkpoint(str(tmp_path))
    whole.unlink()
    assert open_checkpoint(str(tmp_path)).path == str(parts[0])


def test_gptfasts_quantized_copies_lie_beside_its_model(tmp_path: Path) -> None:
    path = write_gptfast(tmp_path / "new")
    copies = [path.with_name(name) for name in ("a.pth", "model_int8.pth")]
    for copy in copies:
        copy.write_bytes(path.read_bytes())
    assert open_checkpoint(str(path.parent)).path == str(path)
    write_gguf(path.with_name("model.gguf"), tiny_model("llama"))
    with pytest.raises(UserError, match=r"holds 2 models, such as model\.gguf, model\.pth; "):
        open_checkpoint(str(path.parent))
    path.with_name("model.gguf").unlink()
    path.unlink()
    with pytest.raises(UserError, match=r"holds 2 models, such as a\.pth, model_int8\.pth; "):
        open_checkpoint(str(path.parent))
    copies[0].unlink()
    assert open_checkpoint(str(path.parent)).path == str(copies[1])


def test_arch_is_refused_where_a_configuration_is_known(tmp_path: Path) -> None:
    make("llama", tmp_path / "hf")
    gguf = write_gguf(tmp_path / "model.gguf", tiny_model("llama"))
    for model in (TINY, str(tmp_path / "hf"), str(tmp_path / "hf" / "model.safetensors"), str(gguf)):
        with pytest.raises(
            UserError, match=r"^arch \(--arch\) is for a checkpoint without a configuration, but .* has"
        ):
            open_checkpoint(model, arch="stories15M")
