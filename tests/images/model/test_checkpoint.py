import json
from contextlib import nullcontext
from dataclasses import asdict, replace

import pytest
import torch
from images.tiny_unet import TINY
from safetensors.torch import save_file

from genwright.errors import UserError
from genwright.images.model import checkpoint
from genwright.images.model.checkpoint import draw_weights, load_unet, random_unet
from genwright.images.model.clusters import Clusters


def test_pt_and_safetensors_give_the_same(tiny_file, tmp_path):
    state = torch.load(tiny_file, weights_only=True)
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, tmp_path / "model")
    torch.save(state, tmp_path / "old", _use_new_zipfile_serialization=False)
    for path in (tiny_file, tmp_path / "model", tmp_path / "old"):
        loaded = load_unet(str(path), TINY).state_dict()
        assert loaded.keys() == state.keys()
        assert all(torch.equal(loaded[name], state[name]) for name in state)


def test_random_weights_depend_on_seed_and_name_alone():
    small, large = draw_weights(TINY, 1).state_dict(), draw_weights(replace(TINY, num_res_blocks=2), 1).state_dict()
    name = "input_blocks.1.0.in_layers.2.weight"
    assert torch.equal(small[name], large[name])
    assert not torch.equal(small[name], draw_weights(TINY, 2).state_dict()[name])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"num_channels": 64},
            r"time_embed.0.weight in .* has shape \[128, 32\], but this UNet shape needs \[256, 64\]",
        ),
        ({"num_classes": None}, "has a label_emb.weight, but this UNet shape has none"),
        ({"num_res_blocks": 2}, "has no input_blocks|has shape"),
    ],
)
def test_checkpoint_of_another_shape_is_one_sentence(tiny_file, change, words):
    with pytest.raises(UserError, match=words):
        load_unet(str(tiny_file), replace(TINY, **change))


class Payload:
    def __reduce__(self):
        return print, ("unpickled",)


def test_damaged_and_foreign_files_are_one_sentence(tiny_file, tmp_path, capsys):
    whole = tiny_file.read_bytes()
    torch.save({"x": Payload()}, tmp_path / "payload.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"model": {"x": torch.zeros(1)}}, tmp_path / "nested.pt")
    files = {
        "empty.pt": b"",
        "cut.pt": whole[: len(whole) // 2],
        "text.pt": b"hello there, this is no model",
        "zip.pt": b"PK\x03\x04rubbish",
        "pickle.pt": b"\x80\x02rubbish",
        "long.safetensors": (2**60).to_bytes(8, "little") + b"{}",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    for name in [*files, "payload.pt", "list.pt", "nested.pt", "missing.pt"]:
        for config in (TINY, None):  # a file that is no checkpoint needs no preset
            with pytest.raises(UserError) as caught:
                load_unet(str(tmp_path / name), config)
            assert "\n" not in str(caught.value) and name in str(caught.value) and "preset" not in str(caught.value)
    assert "unpickled" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "words"),
    [("random:cifar", "preset of random weights must be one of .* not 'cifar'"), ("random:cat256,x=1", "seed=NUMBER")],
)
def test_wrong_random_models_are_one_sentence(model, words):
    with pytest.raises(UserError, match=words):
        random_unet(model)


def test_written_models_say_what_they_are(tmp_path, monkeypatch):
    unet = checkpoint.draw_weights(TINY, seed=0)
    sampler = {"sampler": "multistep", "steps": 40, "ts": (0, 24, 39)}
    said = checkpoint.Description(TINY, ("a", "b"), sampler, Clusters((0,) * 4 + (1,) * 6, (4,) * 10, "aa"))
    monkeypatch.setattr(checkpoint, "SHARD", 2**18)
    checkpoint.save_unet(tmp_path, unet, said, torch.float32)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2 and checkpoint.describe(str(tmp_path)) == said
    loaded = checkpoint.load_unet(str(tmp_path))
    assert loaded.config == TINY
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), unet.parameters(), strict=True))
    for file in files[:2]:  # the first one has the description
        whole = file.read_bytes()
        for damaged in (whole[:1000], whole[:-1], b""):
            file.write_bytes(damaged)
            with pytest.raises(UserError, match=f"{file.name} (is damaged|must be a complete)"):
                checkpoint.load_unet(str(tmp_path))
        file.unlink()
        with pytest.raises(UserError, match=f"{file.name} is missing; the model has {len(files)} files"):
            checkpoint.load_unet(str(tmp_path))
        file.write_bytes(whole)
    checkpoint.load_unet(str(tmp_path))


def test_the_folder_of_a_training_run_stands_for_its_model(tmp_path):
    unet, said = checkpoint.draw_weights(TINY, seed=0), checkpoint.Description(TINY, tuple("abcdefghij"))
    with pytest.raises(UserError, match="has no safetensors files"):
        checkpoint.describe(str(tmp_path))
    checkpoint.save_unet(tmp_path / "model", unet, said, torch.float32)
    assert checkpoint.describe(str(tmp_path)) == checkpoint.describe(str(tmp_path / "model")) == said
    loaded = checkpoint.load_unet(str(tmp_path))
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), unet.parameters(), strict=True))
    checkpoint.save_unet(tmp_path, unet, checkpoint.Description(TINY), torch.float32)
    assert checkpoint.describe(str(tmp_path)).label_names == ()  # a folder's own files come first


def test_an_empty_name_is_not_the_current_folder(tmp_path, monkeypatch):
    checkpoint.save_unet(tmp_path, checkpoint.draw_weights(TINY, seed=0), checkpoint.Description(TINY), torch.float32)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="name is empty"):
        checkpoint.load_unet("")


def test_a_mistyped_name_gets_the_nearest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cd_cat256.pt").touch()
    for name, words in [
        ("emojy", "no file or folder emojy; did you mean emoji\\?"),
        ("imagenet64", "did you mean random:imagenet64"),
        ("cd_cat265.pt", "did you mean cd_cat256.pt"),
        (str(tmp_path / "cd_cat.pt"), f"did you mean {tmp_path}/cd_cat256.pt"),
        ("zzz/model.pt", "no file or folder zzz/model.pt\\.$"),
    ]:
        with pytest.raises(UserError, match=words):
            checkpoint.load_unet(name)


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"colour": 1}},
        {"clusters": {"classes": [0, 1], "counts": [3, 3]}},
        {"clusters": {"classes": [], "counts": [], "digest": ""}},
        {"clusters": {"classes": [0, 1], "counts": [3], "digest": ""}},
        {"clusters": {"classes": [0, 1], "counts": [3, 0], "digest": ""}},
        {"clusters": {"classes": [0, 2], "counts": [3, 3], "digest": ""}},
        {"clusters": {"classes": [1, 0], "counts": [3, 3], "digest": ""}},
        {
            "clusters": {"classes": [0, 1, 1], "counts": [3, 3, 3], "digest": ""}
        },  # three clusters for a UNet of two labels
        {"clusters": {"classes": [0, 0], "counts": [3, 3], "digest": ""}},  # one class, of which two have names
    ],
)
def test_damaged_descriptions_are_one_sentence(tmp_path, change):
    said = asdict(checkpoint.Description(replace(TINY, num_classes=2), ("a", "b"), {}, Clusters((0, 1), (3, 3), "")))
    for name, words in ((json.dumps(said), ""), (json.dumps(said | change), "description in .* is damaged")):
        save_file({"x": torch.zeros(1)}, tmp_path / "odd.safetensors", {"genwright": name})
        with pytest.raises(UserError, match=words) if words else nullcontext():
            assert checkpoint.describe(str(tmp_path / "odd.safetensors")).clusters is not None
