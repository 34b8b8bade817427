"""Packed checkpoints: our own folders, GGUF's blocks and gpt-fast's files, each the model that it was made from."""

import json
from pathlib import Path

import gguf
import pytest
import torch
from quant.test_tinygemm import pack_tiles, quantize_groups, widen
from safetensors.torch import load_file, save_file
from text.checkpoints.tiny_gguf import tiny_model, write_gguf
from text.checkpoints.written_formats import gptfast_tensors
from text.families import make, reference_logits

from genwright import LLM, SamplingParams
from genwright.errors import UserError
from genwright.quant.formats import parse_format
from genwright.quant.packed import Packed, tensors_of
from genwright.quant.tiles import Table, Tiles
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.export.convert import convert
from genwright.text.export.quantize import quantize
from genwright.text.loader import Loader, Model

FORMATS = ("int8", "int4", "int4:g64:asym", "fp8", "fp8:channel")
FAMILIES = ("llama", "llama-3.2", "opt-350m", "qwen2-moe", "mixtral", "deepseek-v3")
PROMPT = [1, *torch.randint(3, 199, (39,), generator=torch.Generator().manual_seed(0)).tolist()]
CPU = torch.device("cpu")


def write(source: Path, target: Path, form: str) -> None:
    quantize(open_checkpoint(str(source)), target, parse_format(form), CPU, lambda done, total: None)


def weights(model: Model) -> dict[str, torch.Tensor | Packed]:
    parts = {"outer": model.outer, **{str(i): block for i, block in enumerate(model.blocks)}}
    return {f"{part}.{name}": weight for part, block in parts.items() for name, weight in block.items()}


def same(one: Model, other: Model) -> bool:
    """Bit for bit, packed alike."""
    ours, theirs = weights(one), weights(other)
    return ours.keys() == theirs.keys() and all(
        type(ours[name]) is type(theirs[name])
        and all(torch.equal(a, b) for a, b in zip(tensors_of(ours[name]), tensors_of(theirs[name]), strict=True))
        for name in ours
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("families")
    for family in FAMILIES:
        make(family, home / family)
    return {family: home / family for family in FAMILIES}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_saved_and_loaded_is_quantized_on_load(
    family: str, form: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    write(folders[family], tmp_path / "new", form)
    loaded, on_load = LLM(tmp_path / "new", dtype="float32"), LLM(folders[family], dtype="float32", quant=form)
    assert same(loaded.model, on_load.model)
    assert torch.equal(loaded.logits(PROMPT), on_load.logits(PROMPT))
    packed = {name: weight for name, weight in weights(loaded.model).items() if isinstance(weight, Packed)}
    wide = {name.partition(".")[2] for name in weights(loaded.model)} - {n.partition(".")[2] for n in packed}
    assert not wide & {"qkv", "out", "gate_up", "down", "fc1", "experts.gate_up", "experts.down", "head", "qkv_a"}
    assert {"embed", "router", "kv_b", "shared.gate"}.isdisjoint(name.partition(".")[2] for name in packed)
    head = packed["outer.head"]
    assert isinstance(head, Tiles) and head.bits == 8 and head.scales.shape[1] == 1
    kept = [weight for name, weight in weights(loaded.model).items() if name not in ("outer.cos", "outer.sin")]
    size = sum(tensor.nbytes for weight in kept for tensor in tensors_of(weight))
    checkpoint = open_checkpoint(str(folders[family]))
    expected = Loader(checkpoint, torch.float32, torch.device("cpu"), quant=parse_format(form)).total_bytes()
    assert size == pytest.approx(expected, rel=0.08)  # fp8 blocks may be cut, and rows are padded to whole tiles


@pytest.mark.parametrize("family", FAMILIES)
def test_a_quantized_model_is_that_of_its_widened_weights(family: str, folders: dict[str, Path]) -> None:
    """The products and the experts' grouping of packed weights against plain ones."""
    llm = LLM(folders[family], dtype="float32", quant="int4:g32:asym", exact_inputs=True)
    plain = LLM(folders[family], dtype="float32")
    for ours, theirs in zip(
        (llm.model.outer, *llm.model.blocks), (plain.model.outer, *plain.model.blocks), strict=True
    ):
        for name, weight in ours.items():
            if isinstance(weight, Packed):
                theirs[name] = weight.dequantize(torch.float32)
    for prompt in (PROMPT, PROMPT[:1], PROMPT * 3):
        torch.testing.assert_close(llm.logits(prompt), plain.logits(prompt), rtol=1e-3, atol=1e-3)


def test_quantizing_what_is_quantized(folders: dict[str, Path], tmp_path: Path) -> None:
    write(folders["llama"], tmp_path / "int8", "int8")
    write(tmp_path / "int8", tmp_path / "again", "int8")
    assert same(LLM(tmp_path / "int8").model, LLM(tmp_path / "again").model)
    write(tmp_path / "int8", tmp_path / "int4", "int4:g64")
    head = LLM(tmp_path / "int4").model.outer["head"]
    assert torch.equal(head.codes, LLM(tmp_path / "int8").model.outer["head"].codes)
    convert(open_checkpoint(str(tmp_path / "int8")), tmp_path / "wide", "safetensors", torch.float32, lambda *_: None)
    wide, packed = LLM(tmp_path / "wide", dtype="float32"), LLM(tmp_path / "int8", dtype="float32", exact_inputs=True)
    torch.testing.assert_close(wide.logits(PROMPT), packed.logits(PROMPT), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_ggufs_blocks_stay_packed(kind: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", tiny_model("llama"), kind)
    packed, wide = LLM(path, dtype="float32", exact_inputs=True), LLM(path, dtype="float32", backend="torch")
    assert not any(isinstance(weight, Packed) for weight in weights(wide.model).values())
    reader = gguf.GGUFReader(path)
    stored = {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    down = packed.model.blocks[1]["down"]
    assert isinstance(down, Tiles) and isinstance(packed.model.outer["embed"], Table)
    assert torch.equal(down.dequantize(torch.float32), torch.from_numpy(stored["blk.1.ffn_down.weight"]))
    for name, weight in weights(packed.model).items():
        dense = weight.dequantize(torch.float32) if isinstance(weight, Packed) else weight
        assert torch.equal(dense, weights(wide.model)[name]), name
    ids = [token % 40 for token in PROMPT]
    torch.testing.assert_close(packed.logits(ids), wide.logits(ids), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("kind", "inner"), [("int8", 0), ("int4", 2), ("int4", 8)])
def test_gptfasts_quantized_files(kind: str, inner: int, tmp_path: Path) -> None:
    """No width is a multiple of eight inner tiles, so gpt-fast pads."""
    model = make("llama", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    tensors, widened = gptfast_tensors(model), {}
    for name in [name for name, tensor in tensors.items() if tensor.dim() == 2 and "embed" not in name]:
        weight, stem = tensors[name], name.removesuffix("weight")
        if kind == "int8":
            scales = (weight.abs().amax(dim=1) / 127.5).bfloat16()
            tensors[name] = (weight / scales.float()[:, None]).round().clamp(-128, 127).to(torch.int8)
            tensors[f"{stem}scales"] = scales
            widened[name] = tensors[name].float() * scales.float()[:, None]
        elif len(weight) % 8 == 0:
            k = weight.shape[1] if inner == 2 else 1024
            q, scales_and_zeros = quantize_groups(torch.nn.functional.pad(weight, (0, k - weight.shape[1])), 32)
            tensors[name], tensors[f"{stem}scales_and_zeros"] = pack_tiles(q, inner), scales_and_zeros
            widened[name] = widen(q, scales_and_zeros)[:, : weight.shape[1]].float()
    torch.save(tensors, tmp_path / "model.pth")
    plain = {**gptfast_tensors(model), **widened}
    (tmp_path / "plain").mkdir()
    torch.save(plain, tmp_path / "plain" / "model.pth")
    (tmp_path / "plain" / "config.json").write_text((tmp_path / "config.json").read_text())
    packed = LLM(tmp_path, dtype="float32", exact_inputs=True)
    wide, qkv = LLM(tmp_path / "plain", dtype="float32"), packed.model.blocks[0]["qkv"]
    assert isinstance(qkv, Tiles) and qkv.bits == (8 if kind == "int8" else 4)
    error = (packed.logits(PROMPT) - wide.logits(PROMPT)).abs().max() / wide.logits(PROMPT).abs().max()
    assert error < (1e-5 if kind == "int8" else 2e-2), "minimums are rounded to float16, and this model is sharp"
    if kind == "int8":  # four bits change the answers of this tiny model
        reference = reference_logits(model, PROMPT)
        assert (packed.logits(PROMPT) - reference).norm() / reference.norm() < 0.1


def test_the_models_own_copy_drafts(folders: dict[str, Path]) -> None:
    prompts = [PROMPT[:length] for length in (3, 17, 40, 9)]
    greedy = SamplingParams(temperature=0.0, max_new_tokens=40, ignore_eos=True)
    alone = LLM(folders["llama"], dtype="float32").generate(prompts, greedy)
    for form in ("int8", "int4"):
        llm = LLM(folders["llama"], dtype="float32", draft=f"self:{form}")
        drafted = llm.generate(prompts, greedy)
        assert [result.ids for result in drafted] == [result.ids for result in alone]
        accepted = [result.acceptance for result in drafted if result.acceptance is not None]
        assert sum(sum(a.accepted) for a in accepted) > 0
        assert isinstance(llm.engine.speculation.draft.executor.model.blocks[0]["qkv"], Packed)


DAMAGE = {
    r"has no tensor 'model\.layers\.1\.mlp\.up_proj\.weight\.scales', which the format int4:g64 needs\.$": (
        lambda tensors, config: tensors.pop("model.layers.1.mlp.up_proj.weight.scales")
    ),
    r"has 'lm_head\.weight\.scales' as float16 \[199, 1\]; the format int8 needs float32 \[199, 1\]\.$": (
        lambda tensors, config: tensors.update({"lm_head.weight.scales": torch.zeros(199, 1).half()})
    ),
    r"\.0\.self_attn\.o_proj\.weight\.words' as int32 \[64, 9\]; the format int4:g64 needs int32 \[64, 8\]\.$": (
        lambda tensors, config: tensors.update(
            {"model.layers.0.self_attn.o_proj.weight.words": torch.zeros(64, 9, dtype=torch.int32)}
        )
    ),
    r"\(quantization_config\): Weight format 'int3' is unknown; choose": (
        lambda tensors, config: config["quantization_config"].update({"format": "int3"})
    ),
    r"\(quantization_config\): Weight format '' is unknown; choose": (
        lambda tensors, config: config["quantization_config"].pop("format")
    ),
    r": 'others' must be an object, not 3\.$": (
        lambda tensors, config: config["quantization_config"].update({"others": 3})
    ),
    r"has no tensor 'model\.layers\.2\.self_attn\.q_proj\.weight', which its configuration needs\.$": (
        lambda tensors, config: [
            tensors.pop(f"model.layers.2.self_attn.q_proj.weight.{part}") for part in ("words", "scales")
        ]
    ),
    r"int4:g32 needs": lambda tensors, config: config["quantization_config"].update({"format": "int4:g32"}),
}


@pytest.mark.parametrize("sentence", DAMAGE)
def test_a_damaged_folder_is_one_sentence(sentence: str, folders: dict[str, Path], tmp_path: Path) -> None:
    write(folders["llama"], tmp_path / "new", "int4:g64")
    tensors = load_file(tmp_path / "new" / "model.safetensors")
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    DAMAGE[sentence](tensors, config)
    save_file(tensors, tmp_path / "new" / "model.safetensors")
    (tmp_path / "new" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=sentence):
        LLM(tmp_path / "new")


@pytest.mark.parametrize("damage", ["scales", "rows", "groups"])
def test_a_damaged_gptfast_file_is_one_sentence(damage: str, tmp_path: Path) -> None:
    model = make("llama", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    tensors = gptfast_tensors(model)
    q, scales_and_zeros = quantize_groups(tensors["layers.0.feed_forward.w1.weight"], 32)
    tensors["layers.0.feed_forward.w1.weight"] = pack_tiles(q, 2)
    broken = {"scales": scales_and_zeros[:, :, 0], "rows": scales_and_zeros[:, 1:], "groups": scales_and_zeros[:0]}
    tensors["layers.0.feed_forward.w1.scales_and_zeros"] = broken[damage].clone()
    torch.save(tensors, tmp_path / "model.pth")
    with pytest.raises(UserError, match=r"'model\.layers\.0\.mlp\.gate_proj\.weight' in a quantized layout that"):
        LLM(tmp_path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"quant": "int3"}, r"Weight format 'int3' is unknown; choose int8, int4, "),
        ({"quant": "int4:g12"}, r"must be a multiple of 8 columns up to 65,536, not 12\.$"),
        ({"kv": "int2"}, r"kv must be one of auto, int8, int4, not 'int2'\.$"),
        ({"draft": "self:int3"}, r"Weight format 'int3' is unknown"),
    ],
)
def test_bad_options_are_one_sentence(options: dict[str, str], sentence: str, folders: dict[str, Path]) -> None:
    with pytest.raises(UserError, match=sentence):
        LLM(folders["llama"], **options)
