"""DeepSeek's folders: FP8 blocks, shards written and read, its own configurations, and missing files."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from text.deepseek_folders import LAYERS, in_fp8, with_draft
from text.families import greedy, make

from genwright import LLM, SamplingParams
from genwright.errors import UserError
from genwright.quant.fp8 import VALUES, Fp8Blocks
from genwright.text.architectures.registry import read_config
from genwright.text.checkpoints.check_tensors import has_draft
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.checkpoints.safetensors_file import size, write_header
from genwright.text.export.convert import convert
from genwright.text.loader import Loader

PROMPT = [1, *torch.randint(3, 199, (39,), generator=torch.Generator().manual_seed(0)).tolist()]


def quiet(done: int, total: int) -> None:
    pass


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny V3 with a multi-token-prediction layer, in float32 and FP8, in two shards, and as DeepSeek leaves them."""
    root = tmp_path_factory.mktemp("deepseek")
    make("deepseek-v3-blocks", root / "float32")
    with_draft(root / "float32")
    in_fp8(root / "float32", root / "fp8")
    in_fp8(root / "float32", root / "ue8m0", "ue8m0")
    convert(open_checkpoint(str(root / "fp8")), root / "mp", "deepseek", None, quiet, 2)
    as_deepseeks(root / "mp", root / "theirs")
    return {path.name: path for path in root.iterdir()}


def logits(path: Path, packed: bool = True, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    llm = LLM(path, device="cpu", dtype=str(dtype).removeprefix("torch."))
    if not packed:
        load = Loader(open_checkpoint(str(path)), dtype, torch.device("cpu"), packed=False)
        llm.engine.executor.model = load.model(llm.model.max_context)
    return llm.logits(PROMPT)


@pytest.mark.parametrize("name", ["fp8", "ue8m0"])
def test_fp8_stays_packed_or_is_dequantized_and_is_the_same(name, folders):
    llm = LLM(folders[name], device="cpu", dtype="float32")
    kinds = {key for key, weight in llm.model.blocks[2].items() if isinstance(weight, Fp8Blocks)}
    assert kinds == {"qkv_a", "q_b", "out", "experts.gate_up", "experts.down", "shared.gate_up", "shared.down"}
    got, expected = llm.logits(PROMPT), logits(folders[name], packed=False)
    assert (got - expected).norm() / expected.norm() < 1e-5
    tensors = load_file(folders[name] / "model.safetensors")
    wide = {
        key: Fp8Blocks(t, tensors[f"{key}_scale_inv"].float()).dequantize(torch.float32) if t.dtype == VALUES else t
        for key, t in tensors.items()
        if not key.endswith("_scale_inv")
    }
    plain = folders[name].parent / f"{name}-plain"
    shutil.copytree(folders["float32"], plain)
    save_file(wide, plain / "model.safetensors", {"format": "pt"})
    assert torch.equal(logits(plain), expected)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", ["float32", "fp8", "ue8m0"])
def test_shards_and_back_are_bit_identical(name, ranks, folders, tmp_path):
    calls: list[tuple[int, int]] = []
    convert(open_checkpoint(str(folders[name])), tmp_path / "mp", "deepseek", None, lambda *c: calls.append(c), ranks)
    before = load_file(folders[name] / "model.safetensors")
    assert calls == [(done, len(before)) for done in range(1, len(before) + 1)]
    assert len(list((tmp_path / "mp").glob("model*-mp*.safetensors"))) == ranks
    assert torch.equal(logits(tmp_path / "mp"), logits(folders[name]))
    convert(open_checkpoint(str(tmp_path / "mp")), tmp_path / "back", "safetensors", None, quiet)
    after = load_file(tmp_path / "back" / "model.safetensors")
    assert after.keys() == before.keys()
    for key, tensor in before.items():
        assert after[key].dtype == tensor.dtype and after[key].view(torch.uint8).equal(tensor.view(torch.uint8)), key


def test_shards_have_deepseeks_names_and_cuts(folders):
    """By the mapping of DeepSeek's inference/convert.py, written out for a few tensors."""
    tensors = load_file(folders["fp8"] / "model.safetensors")
    shards = [load_file(folders["mp"] / f"model{rank}-mp2.safetensors") for rank in range(2)]
    cut = {
        "embed.weight": ("model.embed_tokens.weight", 0),
        "head.weight": ("lm_head.weight", 0),
        "layers.0.attn.wq_b.weight": ("model.layers.0.self_attn.q_b_proj.weight", 0),
        "layers.0.attn.wq_b.scale": ("model.layers.0.self_attn.q_b_proj.weight_scale_inv", 0),
        "layers.1.attn.wo.scale": ("model.layers.1.self_attn.o_proj.weight_scale_inv", 1),
        "layers.0.ffn.w2.weight": ("model.layers.0.mlp.down_proj.weight", 1),
        "layers.2.ffn.shared_experts.w3.weight": ("model.layers.2.mlp.shared_experts.up_proj.weight", 0),
        "layers.0.attn.wkv_a.weight": ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", None),
        "layers.1.ffn.gate.bias": ("model.layers.1.mlp.gate.e_score_correction_bias", None),
        "layers.1.attn_norm.weight": ("model.layers.1.input_layernorm.weight", None),
        "norm.weight": ("model.norm.weight", None),
    }
    for theirs, (ours, dim) in cut.items():
        for rank, shard in enumerate(shards):
            whole = tensors[ours].view(torch.uint8) if tensors[ours].itemsize == 1 else tensors[ours]
            part = whole if dim is None else whole.chunk(2, dim)[rank]
            assert shard[theirs].view(part.dtype).equal(part), theirs
    assert "layers.1.ffn.experts.3.w1.weight" in shards[0] and "layers.1.ffn.experts.3.w1.weight" not in shards[1]
    assert "layers.1.ffn.experts.4.w1.weight" in shards[1] and "layers.1.ffn.experts.4.w1.weight" not in shards[0]


ARGS = {"vocab_size": 256, "dim": 256, "inter_dim": 512, "moe_inter_dim": 256, "n_layers": 3, "n_dense_layers": 1}
ARGS |= {"n_heads": 4, "n_routed_experts": 8, "n_shared_experts": 2, "n_activated_experts": 3, "n_expert_groups": 4}
ARGS |= {"n_limited_groups": 2, "route_scale": 2.5, "score_func": "sigmoid", "q_lora_rank": 128, "kv_lora_rank": 128}
ARGS |= {"qk_nope_head_dim": 128, "qk_rope_head_dim": 128, "v_head_dim": 128, "original_seq_len": 128}
ARGS |= {"rope_factor": 4.0, "mscale": 0.9, "dtype": "fp8"}


def as_deepseeks(folder: Path, target: Path) -> None:
    """As DeepSeek's own script writes it: no multi-token-prediction layer, no config.json, and its own settings."""
    target.mkdir()
    for path in folder.glob("*.safetensors"):
        tensors = {name: t for name, t in load_file(path).items() if not name.startswith(f"layers.{LAYERS}.")}
        save_file(tensors, target / path.name)
    (target / "config_tiny.json").write_text(json.dumps(ARGS))


def test_deepseeks_own_shards_load(folders):
    checkpoint = open_checkpoint(str(folders["theirs"]))
    assert torch.equal(logits(folders["theirs"]), logits(folders["fp8"]))
    assert not has_draft(checkpoint)
    written = json.loads((folders["mp"] / "config_mp2.json").read_text())
    assert written.items() >= ARGS.items()
    both = [read_config(open_checkpoint(str(folders[p])).hf_config, p) for p in ("mp", "theirs")]
    assert both[0].moe == both[1].moe and both[0].mla == both[1].mla


def test_a_short_context_switches_yarn_off_as_theirs_does(folders, tmp_path):
    """A model without YaRN is written so that DeepSeek's code does not apply it."""
    shutil.copytree(folders["theirs"], tmp_path / "short")
    short = {**ARGS, "max_seq_len": ARGS["original_seq_len"]}
    (tmp_path / "short" / "config_tiny.json").write_text(json.dumps(short))
    cfg = open_checkpoint(str(tmp_path / "short")).config
    assert (cfg.rope.kind, cfg.max_context) == ("default", ARGS["original_seq_len"])
    shutil.copytree(folders["fp8"], tmp_path / "plain")
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    del config["rope_parameters"]
    (tmp_path / "plain" / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 128}))
    assert torch.equal(logits(tmp_path / "short"), logits(tmp_path / "plain"))
    assert not torch.equal(logits(tmp_path / "short"), logits(folders["theirs"]))
    convert(open_checkpoint(str(tmp_path / "plain")), tmp_path / "mp", "deepseek", None, quiet)
    written = json.loads((tmp_path / "mp" / "config_mp1.json").read_text())
    assert written["max_seq_len"] == written["original_seq_len"] == 128


def test_to_bf16_widens_fp8_and_leaves_the_rest(folders, tmp_path):
    convert(open_checkpoint(str(folders["fp8"])), tmp_path / "bf16", "bf16", None, quiet)
    before, after = (load_file(path / "model.safetensors") for path in (folders["fp8"], tmp_path / "bf16"))
    assert after.keys() == {name for name in before if not name.endswith("_scale_inv")}
    for name, tensor in after.items():
        if before[name].dtype == VALUES:
            wide = Fp8Blocks(before[name], before[f"{name}_scale_inv"]).dequantize(torch.bfloat16)
            assert tensor.equal(wide), name
        else:
            assert tensor.dtype == before[name].dtype and tensor.equal(before[name]), name
    assert "quantization_config" not in json.loads((tmp_path / "bf16" / "config.json").read_text())
    assert torch.equal(logits(tmp_path / "bf16", dtype=torch.bfloat16), logits(folders["fp8"], False, torch.bfloat16))


def edit(path: Path, change) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def rewrite(path: Path, **changes) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


EXPERT = "model.layers.2.mlp.experts.5.down_proj.weight"
WRONG = {
    rf"model\.safetensors has no tensor '{re.escape(EXPERT)}'": (
        *("fp8", lambda folder: edit(folder / "model.safetensors", lambda tensors: tensors.pop(EXPERT))),
    ),
    rf"model\.safetensors has no tensor '{re.escape(EXPERT)}_scale_inv'": (
        *("fp8", lambda folder: edit(folder / "model.safetensors", lambda tensors: tensors.pop(f"{EXPERT}_scale_inv"))),
    ),
    rf"model1-mp2\.safetensors has no tensor '{re.escape(EXPERT)}'": (
        "mp",
        lambda folder: edit(folder / "model1-mp2.safetensors", lambda t: t.pop("layers.2.ffn.experts.5.w2.weight")),
    ),
    r"model1-mp2\.safetensors has no tensor 'layers\.0\.attn\.wo\.weight', which model0-mp2\.safetensors has": (
        "mp",
        lambda folder: edit(folder / "model1-mp2.safetensors", lambda tensors: tensors.pop("layers.0.attn.wo.weight")),
    ),
    r"mp lacks model1-mp2\.safetensors, one of its 2 shards": (
        *("mp", lambda folder: (folder / "model1-mp2.safetensors").unlink()),
    ),
    r"mp has shards for 2 and for 4 ranks; keep one set only": (
        *("mp", lambda folder: shutil.copy(folder / "model0-mp2.safetensors", folder / "model0-mp4.safetensors")),
    ),
    r"model0-mp1\.safetensors has 'model\.embed_tokens\.weight' of shape \[128, 256\]; .* needs \[256, 256\]": (
        "mp",
        lambda folder: (
            (folder / "model1-mp2.safetensors").unlink(),
            (folder / "model0-mp2.safetensors").rename(folder / "model0-mp1.safetensors"),
        ),
    ),
    r"model0-mp2\.safetensors has 'model\.layers\.0\.self_attn\.q_a_proj\.weight' of shape": (
        *("mp", lambda folder: rewrite(folder / "config.json", q_lora_rank=64)),
    ),
    r"model0-mp2\.safetensors has no tensor 'model\.layers\.0\.self_attn\.q_proj\.weight'": (
        *("mp", lambda folder: rewrite(folder / "config.json", q_lora_rank=None)),
    ),
    r"model0-mp2\.safetensors has no tensor 'model\.layers\.0\.mlp\.gate\.weight'": (
        *("mp", lambda folder: rewrite(folder / "config.json", first_k_dense_replace=0)),
    ),
    r"config_tiny\.json has 'hidden_size', which is not a setting of DeepSeek's inference code": (
        *("theirs", lambda folder: rewrite(folder / "config_tiny.json", hidden_size=256)),
    ),
    r"theirs has several configurations, config_16B\.json, config_tiny\.json": (
        *("theirs", lambda folder: (folder / "config_16B.json").write_text("{}")),
    ),
    r"theirs fits none of the known shapes; put its config\.json beside it": (
        *("theirs", lambda folder: (folder / "config_tiny.json").unlink()),
    ),
}


@pytest.mark.parametrize("sentence", WRONG)
def test_what_is_missing_or_mixed_up_is_one_sentence(sentence, folders, tmp_path):
    name, damage = WRONG[sentence]
    shutil.copytree(folders[name], tmp_path / name)
    damage(tmp_path / name)
    with pytest.raises(UserError, match=sentence) as error:
        LLM(tmp_path / name, device="cpu", dtype="float32")
    assert len(str(error.value).splitlines()) == 1 and str(error.value).endswith(".")


@pytest.mark.parametrize(
    ("name", "ranks", "sentence"),
    [
        ("fp8", 3, "has 8 experts, which is not a multiple of 3 ranks"),
        (
            "fp8",
            8,
            r"'model\.layers\.0\.self_attn\.kv_b_proj\.weight' .* 8 equal parts of whole heads or groups of 256 rows",
        ),
    ],
)
def test_ranks_that_cannot_share_are_refused(name, ranks, sentence, folders, tmp_path):
    with pytest.raises(UserError, match=sentence):
        convert(open_checkpoint(str(folders[name])), tmp_path / "mp", "deepseek", None, quiet, ranks)
    assert not list(tmp_path.iterdir())


def test_other_models_are_not_cut(tmp_path):
    make("llama", tmp_path / "llama")
    with pytest.raises(UserError, match="is not a DeepSeek model"):
        convert(open_checkpoint(str(tmp_path / "llama")), tmp_path / "mp", "deepseek", None, quiet, 2)


def test_greedy_tokens_of_shards_are_transformers(tmp_path):
    theirs = make("deepseek-v3-blocks", tmp_path / "hf")
    convert(open_checkpoint(str(tmp_path / "hf")), tmp_path / "mp", "deepseek", None, quiet, 2)
    with safe_open(tmp_path / "mp" / "model0-mp2.safetensors", "pt") as file:
        assert "layers.3.eh_proj.weight" not in file.keys()  # noqa: SIM118
    got = LLM(tmp_path / "mp", device="cpu", dtype="float32").generate([PROMPT], SamplingParams(max_new_tokens=8))
    assert got[0].ids == greedy(theirs, PROMPT, 8)[: len(got[0].ids)]


def test_the_fitting_shape_is_found_without_a_configuration(tmp_path):
    shapes = {"embed.weight": (102400, 2048), "layers.26.attn_norm.weight": (2048,)}
    with (tmp_path / "model0-mp1.safetensors").open("wb") as file:
        entries = {name: (shape, torch.bfloat16) for name, shape in shapes.items()}
        write_header(file, entries)
        file.truncate(file.tell() + sum(map(size, entries.values())))
    cfg = open_checkpoint(str(tmp_path)).config
    assert (cfg.layers, cfg.moe.experts, cfg.mla.q_lora_rank) == (27, 64, None)
    assert open_checkpoint(str(tmp_path), arch="deepseek-v2").config.layers == 60
    with pytest.raises(UserError, match=r"model0-mp1\.safetensors has no tensor 'model\.norm\.weight'"):
        LLM(tmp_path, device="cpu")
