"""DeepSeek's Transformer: its parameters, logits beside the engine's and the original's, and loading after a step."""

import sys
from pathlib import Path

import pytest
import torch
from dropin.deepseek.tiny_deepseek import SHAPES, TORCHRUN, run
from safetensors.torch import load_file, load_model

from genwright import LLM
from genwright.errors import UserError

ROUGH = {"v2": 1e-5, "v3": 0.02}  # in float32, and in bfloat16 with weights from FP8
PROMPTS = torch.randint(2, 258, (2, 70), generator=torch.Generator().manual_seed(1))  # beyond the original_seq_len


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found.float() - expected.float()).norm() / expected.float().norm()).item()


@pytest.fixture(autouse=True)
def bfloat16():
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_are_those_of_a_shard(name: str, checkpoints: Path) -> None:
    from model import ModelArgs, Transformer

    ours = Transformer(ModelArgs(**SHAPES[name])).state_dict()
    theirs = load_file(checkpoints / f"{name}-mp1" / "model0-mp1.safetensors")
    assert {key: (value.shape, value.dtype) for key, value in ours.items()} == {
        key: (value.shape, value.dtype) for key, value in theirs.items()
    }


@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_the_engines(name: str, checkpoints: Path) -> None:
    from model import ModelArgs, Transformer

    model = Transformer(ModelArgs(**SHAPES[name]))
    model(PROMPTS[:, :5])  # the original's script generates before it loads
    file = checkpoints / f"{name}-mp1" / "model0-mp1.safetensors"
    load_model(model, file)
    if name == "v2":
        model.float()
    whole = model(PROMPTS)
    for start, end in ((0, 7), (7, 69), (69, 70)):
        logits = model(PROMPTS[:, start:end], start)
    assert distance(logits, whole) < ROUGH[name]
    with LLM(checkpoints / name, device="cpu", dtype="float32" if name == "v2" else "bfloat16") as llm:
        engines = torch.stack([llm.logits(row.tolist())[-1] for row in PROMPTS])
    assert distance(whole, engines) < ROUGH[name]
    for key, tensor in load_file(file).items():
        assert torch.equal(model.get_parameter(key).float(), tensor.float()), key


def test_matrices_are_stored_once(checkpoints: Path) -> None:
    from model import ModelArgs, Transformer

    model = Transformer(ModelArgs(**SHAPES["v2"]))
    for _ in range(2):
        model(PROMPTS)
        experts = [model.get_parameter(f"layers.1.ffn.experts.{i}.w{w}.weight") for i in range(8) for w in (1, 3)]
        assert len({expert.untyped_storage().data_ptr() for expert in experts}) == 1
        load_model(model, checkpoints / "v2-mp1" / "model0-mp1.safetensors")


def test_a_rank_has_its_part(checkpoints: Path, tmp_path: Path) -> None:
    """Two ranks have the names and shapes of their shards, and give the logits of one."""
    from model import ModelArgs, Transformer

    model = Transformer(ModelArgs(**SHAPES["v2"]))
    load_model(model, checkpoints / "v2-mp1" / "model0-mp1.safetensors")
    torch.save({"prompts": PROMPTS, "logits": model.float()(PROMPTS)}, tmp_path / "expected.pt")
    (tmp_path / "script.py").write_text(
        "import json, sys, torch, torch.distributed as dist\n"
        "from safetensors.torch import load_model\n"
        "from model import ModelArgs, Transformer\n"
        "dist.init_process_group('gloo')\n"
        "model = Transformer(ModelArgs(**json.load(open(sys.argv[1]))))\n"
        "load_model(model, f'{sys.argv[2]}/model{dist.get_rank()}-mp2.safetensors')\n"
        "expected = torch.load('expected.pt')\n"
        "got = model.float()(expected['prompts'])\n"
        "torch.testing.assert_close(got, expected['logits'], rtol=1e-4, atol=1e-4)\n"
        "print('equal', flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    script = ["-m", "genwright", "dropin", "deepseek", "--script", "script.py"]
    done = run([*TORCHRUN, *script, checkpoints / "v2.json", checkpoints / "v2-mp2"], tmp_path)
    assert done.stdout.count("equal") == 2


def test_too_many_sequences_or_tokens_are_one_sentence() -> None:
    from model import ModelArgs, Transformer

    model = Transformer(ModelArgs(**SHAPES["v2"]))
    for shape, start in (((4, 2), 0), ((1, 2), 255)):
        with pytest.raises(UserError, match=r"the model has room for 3 with 256; set max_batch_size"):
            model(torch.zeros(shape, dtype=torch.long), start)


@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_the_originals(name: str, checkpoints: Path, original: Path, monkeypatch) -> None:
    """Its own modules in float32 (V3: in bfloat16, because its FP8 weights become that)."""
    import kernel
    from model import ModelArgs, Transformer

    ours = Transformer(ModelArgs(**SHAPES[name]))
    del sys.modules["model"]
    monkeypatch.setitem(sys.modules, "kernel", kernel)  # the original's needs a GPU
    monkeypatch.syspath_prepend(str(original))
    import model

    assert model.__file__.startswith(str(original))
    theirs = model.Transformer(model.ModelArgs(**SHAPES[name]))
    assert {key: (value.shape, value.dtype) for key, value in ours.state_dict().items()} == {
        key: (value.shape, value.dtype) for key, value in theirs.state_dict().items()
    }
    for each in (ours, theirs):
        load_model(each, checkpoints / f"{name}-mp1" / "model0-mp1.safetensors")
        if name == "v2":
            each.float()
    for start, end in ((0, 69), (69, 70)):
        tokens = PROMPTS[:, start:end]
        assert distance(ours(tokens, start), theirs(tokens, start)) < ROUGH[name]


@pytest.mark.gpu
@pytest.mark.parametrize("name", SHAPES)
def test_a_gpu_gives_the_logits_of_a_cpu(name: str, checkpoints: Path) -> None:
    from model import ModelArgs, Transformer

    found = []
    for device in ("cpu", "cuda"):
        with torch.device(device):
            model = Transformer(ModelArgs(**SHAPES[name]))
        model(PROMPTS[:, :5].to(device))
        load_model(model, checkpoints / f"{name}-mp1" / "model0-mp1.safetensors")
        model(PROMPTS[:, :69].to(device))
        found.append(model(PROMPTS[:, 69:].to(device), 69).float().cpu())
    assert distance(*found) < 0.03
