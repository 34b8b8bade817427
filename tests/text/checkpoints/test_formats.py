"""The same weights in every format are the same model, read by us and by transformers, converted or not."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from text.checkpoints.tiny_gguf import tiny_model, write_gguf
from text.families import make, reference_logits
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from genwright import LLM
from genwright.errors import UserError
from genwright.text.architectures.registry import read_config
from genwright.text.checkpoints.gptfast import GptFast
from genwright.text.checkpoints.huggingface import HuggingFace
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.checkpoints.protocol import parse_dtype
from genwright.text.export import convert as conversion
from genwright.text.export.convert import convert

PROMPT = [1, *torch.randint(3, 199, (39,), generator=torch.Generator().manual_seed(0)).tolist()]


def state(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """A model's tensors, each once and with a storage of its own."""
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    return tensors


def write_sharded(model: PreTrainedModel, folder: Path) -> None:
    model.save_pretrained(folder, max_shard_size="60KB")
    assert len(list(folder.glob("model-*-of-*.safetensors"))) > 3


def write_bin(model: PreTrainedModel, folder: Path) -> None:
    model.config.save_pretrained(folder)
    tensors = {name: torch.nn.Parameter(tensor) for name, tensor in state(model).items()}  # as some were saved
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)  # so were buffers that are none today
    torch.save(tensors, folder / "pytorch_model.bin")


def write_sharded_bin(model: PreTrainedModel, folder: Path) -> None:
    model.config.save_pretrained(folder)
    tensors = state(model)
    where = {name: f"pytorch_model-{1 + index % 3:05}-of-00003.bin" for index, name in enumerate(tensors)}
    for file in set(where.values()):
        torch.save({name: tensors[name] for name in tensors if where[name] == file}, folder / file)
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": where}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def neighbours(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Row 2i of a head is the i-th of its first half, row 2i + 1 the i-th of its second: as Meta rotates them."""
    half = head_dim // 2
    rows = [
        head * head_dim + pair + part * half
        for head in range(len(weight) // head_dim)
        for pair in range(half)
        for part in (0, 1)
    ]
    return weight[rows]


def meta_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The tensors by Meta's names, as gpt-fast and the stories models have them, q, k and v apart."""
    theirs, config = model.state_dict(), model.config
    head_dim = config.head_dim or config.hidden_size // config.num_attention_heads
    tensors = {
        "tok_embeddings.weight": theirs["model.embed_tokens.weight"],
        "norm.weight": theirs["model.norm.weight"],
        "output.weight": theirs["lm_head.weight"],
    }
    for layer in range(model.config.num_hidden_layers):
        of, to = f"model.layers.{layer}.", f"layers.{layer}."
        tensors |= {
            f"{to}attention.wq.weight": neighbours(theirs[f"{of}self_attn.q_proj.weight"], head_dim),
            f"{to}attention.wk.weight": neighbours(theirs[f"{of}self_attn.k_proj.weight"], head_dim),
            f"{to}attention.wv.weight": theirs[f"{of}self_attn.v_proj.weight"],
            f"{to}attention.wo.weight": theirs[f"{of}self_attn.o_proj.weight"],
            f"{to}attention_norm.weight": theirs[f"{of}input_layernorm.weight"],
            f"{to}ffn_norm.weight": theirs[f"{of}post_attention_layernorm.weight"],
        }
        for number, name in ((1, "gate"), (2, "down"), (3, "up")):
            if f"{of}mlp.{name}_proj.weight" in theirs:  # not Mixtral's
                tensors[f"{to}feed_forward.w{number}.weight"] = theirs[f"{of}mlp.{name}_proj.weight"]
    return {name: tensor.clone() for name, tensor in tensors.items()}


def gptfast_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    tensors = meta_tensors(model)
    for layer in range(model.config.num_hidden_layers):
        attention = f"layers.{layer}.attention."
        tensors[f"{attention}wqkv.weight"] = torch.cat([tensors.pop(f"{attention}w{x}.weight") for x in "qkv"])
    return tensors


def write_gptfast(model: PreTrainedModel, folder: Path) -> None:
    model.config.save_pretrained(folder)
    torch.save(gptfast_tensors(model), folder / "model.pth")


def write_stories(model: PreTrainedModel, folder: Path) -> None:
    model.config.save_pretrained(folder)
    tensors = {f"_orig_mod.{name}": tensor for name, tensor in meta_tensors(model).items()}
    torch.save({"model": tensors, "iter_num": 7, "model_args": {"dim": 64}}, folder / "stories15M.pt")


FORMATS: dict[str, Callable[[PreTrainedModel, Path], object]] = {
    "sharded safetensors": write_sharded,
    "bin": write_bin,
    "sharded bin": write_sharded_bin,
    "gguf": lambda model, folder: write_gguf(folder / "model.gguf", model),
    "gptfast": write_gptfast,
    "stories": write_stories,
}
# Families without biases and q and k norms, which Meta's layout cannot hold.
PLAIN = ("llama", "llama-3.2", "mistral", "codellama")
LATER = ("opt-350m", "mixtral", "qwen2-moe", "deepseek-v3")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[PreTrainedModel, Path, torch.Tensor]]:
    """By family: transformers' model, its safetensors folder, and our logits of that folder."""
    made = {}
    for family in (*PLAIN, "qwen3", "llama-biased", *LATER):
        folder = tmp_path_factory.mktemp(family)
        made[family] = (make(family, folder), folder, logits(folder))
    return made


def logits(path: Path, dtype: str = "float32", arch: str | None = None) -> torch.Tensor:
    return LLM(path, device="cpu", dtype=dtype, arch=arch, exact_inputs=True).logits(PROMPT)


@pytest.mark.parametrize(
    ("family", "form"),
    [
        *((family, form) for family in PLAIN for form in FORMATS if (family, form) != ("llama-3.2", "gguf")),
        *(
            (family, form)
            for family in ("qwen3", "llama-biased", "opt-350m")
            for form in FORMATS
            if "bin" in form or "saf" in form
        ),
        ("qwen3", "gguf"),
    ],
)
def test_every_format_of_the_same_weights_has_the_same_logits(family, form, models, tmp_path):
    model, _, expected = models[family]
    FORMATS[form](model, tmp_path)
    if (family, form) == ("mistral", "gguf"):  # llama.cpp's converter does not write the window of that architecture
        path = write_gguf(tmp_path / "model.gguf", model, llama__attention__sliding_window=model.config.sliding_window)
    else:
        path = tmp_path
    assert torch.equal(logits(path), expected)


def test_a_file_of_the_folder_stands_for_the_folder(models, tmp_path):
    model, folder, expected = models["llama"]
    assert torch.equal(logits(folder / "model.safetensors"), expected)
    write_gguf(tmp_path / "some name", model)
    assert torch.equal(logits(tmp_path / "some name"), expected)


@pytest.mark.parametrize("write", [write_sharded, write_sharded_bin])
def test_shards_are_opened_when_a_tensor_of_theirs_is_asked_for(write, models, tmp_path):
    model, _, _ = models["llama"]
    write(model, tmp_path)
    checkpoint = HuggingFace(tmp_path)
    assert sorted(checkpoint.names()) == sorted(state(model)) and not checkpoint._files
    checkpoint.tensor("model.norm.weight")
    checkpoint.shape("model.norm.weight")
    assert len(checkpoint._files) == 1


SOURCES = {"safetensors": lambda model, folder: model.save_pretrained(folder), **FORMATS}


@pytest.mark.parametrize("form", SOURCES)
def test_every_format_converts_to_safetensors(form, models, tmp_path):
    model, _, expected = models["llama"]
    source, target = tmp_path / "source", tmp_path / "new" / "target"
    source.mkdir()
    SOURCES[form](model, source)
    calls: list[tuple[int, int]] = []
    convert(open_checkpoint(str(source)), target, "safetensors", torch.float32, lambda *call: calls.append(call))
    count = len(state(model))
    assert calls == [(done, count) for done in range(1, count + 1)]
    assert sorted(p.name for p in target.parent.iterdir()) == ["target"]
    assert torch.equal(logits(target), expected)
    theirs = AutoModelForCausalLM.from_pretrained(target, attn_implementation="eager")
    assert theirs.dtype == torch.float32
    assert torch.equal(reference_logits(theirs, PROMPT), reference_logits(model, PROMPT))


@pytest.mark.parametrize("family", LATER)
def test_later_families_convert_to_safetensors(family, models, tmp_path):
    model, folder, expected = models[family]
    convert(open_checkpoint(str(folder)), tmp_path / "new", "safetensors", None, lambda done, total: None)
    assert torch.equal(logits(tmp_path / "new"), expected)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "new", attn_implementation="eager")
    assert torch.equal(reference_logits(theirs, PROMPT), reference_logits(model, PROMPT))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("shard", [conversion.SHARD_BYTES, 50_000])
def test_weights_are_rounded_once_and_shards_are_indexed(dtype, shard, models, tmp_path, monkeypatch):
    model, folder, _ = models["llama"]
    monkeypatch.setattr(conversion, "SHARD_BYTES", shard)
    kind = parse_dtype(dtype)
    convert(open_checkpoint(str(folder)), tmp_path / "new", "safetensors", kind, lambda done, total: None)
    files = sorted((tmp_path / "new").glob("*.safetensors"))
    index = tmp_path / "new" / "model.safetensors.index.json"
    assert (len(files) > 3) == index.exists() == (shard == 50_000)
    if index.exists():
        read = json.loads(index.read_text())
        assert set(read["weight_map"].values()) == {file.name for file in files}
        assert read["metadata"]["total_size"] == sum(t.numel() for t in state(model).values()) * kind.itemsize
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    assert theirs.dtype == kind
    checkpoint = open_checkpoint(str(tmp_path / "new"))
    assert checkpoint.config.dtype == dtype
    for name, tensor in state(model).items():
        assert torch.equal(checkpoint.tensor(name), tensor.to(kind)), name
        assert torch.equal(theirs.state_dict()[name], tensor.to(kind)), name
    assert torch.equal(logits(tmp_path / "new", dtype), logits(folder, dtype))


@pytest.mark.parametrize("form", SOURCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_format_converts_to_gptfast(form, dtype, models, tmp_path):
    model, _, expected = models["llama"]
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    SOURCES[form](model, source)
    calls: list[tuple[int, int]] = []
    convert(open_checkpoint(str(source)), target, "gptfast", dtype, lambda *call: calls.append(call))
    read = torch.load(target / "model.pth", weights_only=True)
    wanted = gptfast_tensors(model)
    assert calls == [(done, len(wanted)) for done in range(1, len(wanted) + 1)]
    assert read.keys() == wanted.keys()
    assert all(torch.equal(read[name], wanted[name].to(dtype)) for name in wanted)
    if dtype == torch.float32:
        assert torch.equal(logits(target), expected)


@pytest.mark.parametrize("family", PLAIN)
def test_gptfast_and_back_is_the_same_model(family, models, tmp_path):
    _, folder, expected = models[family]
    convert(open_checkpoint(str(folder)), tmp_path / "pth", "gptfast", torch.float32, lambda done, total: None)
    assert torch.equal(logits(tmp_path / "pth"), expected)
    there = open_checkpoint(str(tmp_path / "pth"))
    convert(there, tmp_path / "back", "safetensors", torch.float32, lambda done, total: None)
    assert torch.equal(logits(tmp_path / "back"), expected)


def mixtral_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """gpt-fast's Mixtral: each weight of all experts in one tensor [experts, rows, columns]."""
    theirs, tensors = model.state_dict(), gptfast_tensors(model)
    for layer in range(model.config.num_hidden_layers):
        of, to = f"model.layers.{layer}.mlp.", f"layers.{layer}.block_sparse_moe."
        gate, up = theirs[f"{of}experts.gate_up_proj"].chunk(2, dim=1)
        tensors[f"{to}gate.weight"] = theirs[f"{of}gate.weight"]
        experts = {"w1": gate, "w2": theirs[f"{of}experts.down_proj"], "w3": up}
        tensors |= {f"{to}cond_ffn.{name}": tensor for name, tensor in experts.items()}
    return {name: tensor.clone() for name, tensor in tensors.items()}


def test_gptfasts_mixtral_is_the_same_model(models, tmp_path):
    model, _, expected = models["mixtral"]
    model.config.save_pretrained(tmp_path)
    tensors = mixtral_tensors(model)
    torch.save(tensors, tmp_path / "model.pth")
    assert torch.equal(logits(tmp_path), expected)
    shape = {key: value for key, value in model.config.to_dict().items() if value is not None}
    for experts, fits in ((6, True), (7, False)):
        cfg = read_config({**shape, "num_local_experts": experts}, "config.json")
        assert GptFast(tmp_path / "model.pth")._fits(cfg) is fits
    packed = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        if "tok_" in name or "norm" in name or "gate" in name:
            continue
        scales = (tensor.abs().amax(-1) / 127).bfloat16()
        packed[name] = (tensor / scales[..., None]).round().to(torch.int8)
        packed[f"{stem}.scales{kind[1] if kind.startswith('w') and kind != 'weight' else ''}"] = scales
        tensors[name] = packed[name] * scales[..., None].float()
    torch.save(tensors, tmp_path / "model.pth")
    expected = logits(tmp_path)
    torch.save({**tensors, **packed}, tmp_path / "model.pth")
    form = open_checkpoint(str(tmp_path)).format("model.layers.0.block_sparse_moe.experts.5.w2.weight")
    assert form is not None and form.kind == "int8"
    assert (logits(tmp_path) - expected).norm() / expected.norm() < 1e-4


def without_config(model: str, folder: Path) -> Path:
    """gpt-fast's file alone, as gpt-fast's own scripts leave it."""
    convert(open_checkpoint(model), folder, "gptfast", torch.float32, lambda done, total: None)
    (folder / "config.json").unlink()
    return folder / "model.pth"


def test_without_a_config_the_one_fitting_shape_is_taken(tmp_path, capsys):
    path = without_config("random:stories15M", tmp_path / "anything")
    cfg = GptFast(path).config
    assert (cfg.layers, cfg.heads, cfg.max_context) == (6, 6, 256)
    assert capsys.readouterr().err == ""
    expected = LLM("random:stories15M", dtype="float32").logits(PROMPT)
    assert torch.equal(logits(path), expected)
    assert torch.equal(logits(path.parent, arch="stories15M"), expected)
    with pytest.raises(UserError, match=r"'model\.embed_tokens\.weight' of shape \[32000, 288\]; .* \[32000, 768\]"):
        logits(path, arch="stories110M")
    with pytest.raises(UserError, match=r"no model shape named 'stories16M'; did you mean stories15m\?$"):
        logits(path, arch="stories16M")
    path = without_config("random:stories15M,layers=2", tmp_path / "stories15M")
    with pytest.raises(UserError, match=r"fits none of the known shapes; put its config\.json beside it"):
        logits(path)


@pytest.mark.parametrize(
    ("folder", "chosen", "theta"),
    [
        ("Llama-2-7b-chat-hf", "llama-2-7b", 1e4),
        ("7B", "llama-2-7b", 1e4),
        ("llama-7b", "llama-7b", 1e4),
        ("codellama/CodeLlama-7b-Python-hf", "codellama-7b-python", 1e6),
        ("mine", None, None),
    ],
)
def test_among_several_fitting_shapes_the_folder_chooses(folder, chosen, theta, tmp_path, capsys):
    zero = torch.zeros(1)  # seen as any shape: the file stays small
    shapes = {"tok_embeddings": (32000, 4096), "layers.0.attention.wqkv": (3 * 4096, 4096)}
    shapes |= {"layers.0.feed_forward.w1": (11008, 4096), "layers.31.ffn_norm": (4096,)}
    home = tmp_path / folder
    home.mkdir(parents=True)
    torch.save({f"{name}.weight": zero.expand(shape) for name, shape in shapes.items()}, home / "model.pth")
    if chosen is None:
        sentence = r"fits llama-7b, llama-2-7b, codellama-7b-python; choose with arch \(--arch NAME\)\.$"
        with pytest.raises(UserError, match=sentence):
            open_checkpoint(str(home))
        assert GptFast(home / "model.pth", "llama-7b").config.max_context == 2048
        return
    cfg = open_checkpoint(str(home)).config
    assert f"assuming {chosen} because of the folder's name" in capsys.readouterr().err
    assert (cfg.layers, cfg.rope.theta) == (32, theta)


def test_llama3_scaling_survives_the_way_through_gguf(tmp_path):
    """GGUF keeps one factor per frequency; the written folder has the settings that they came from."""
    scaling = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    model = tiny_model("llama", rope_parameters=scaling, tie_word_embeddings=True, max_position_embeddings=131072)
    plain = 1.0 / 500000.0 ** (torch.arange(0, 16, 2) / 16)
    model.config.rope_factors = (plain / ROPE_INIT_FUNCTIONS["llama3"](model.config, "cpu")[0]).tolist()
    convert(
        open_checkpoint(str(write_gguf(tmp_path / "tiny.gguf", model))),
        tmp_path / "new",
        "safetensors",
        torch.float32,
        lambda done, total: None,
    )
    written = json.loads((tmp_path / "new" / "config.json").read_text())
    assert written["rope_scaling"] == {key: value for key, value in scaling.items() if key != "rope_theta"}
    assert written["rope_theta"] == 500000.0
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "new")
    prompt = list(range(40))
    torch.testing.assert_close(reference_logits(theirs, prompt), reference_logits(model, prompt))
    ours = LLM(tmp_path / "new", dtype="float32").logits(prompt)
    torch.testing.assert_close(ours, reference_logits(model, prompt), rtol=1e-4, atol=1e-5)


def test_refusals_are_one_sentence(models, tmp_path):
    _, folder, _ = models["llama"]
    quiet = lambda done, total: None  # noqa: E731
    with pytest.raises(UserError, match=r"exists already; name a new folder\.$"):
        convert(open_checkpoint(str(folder)), tmp_path, "safetensors", torch.float32, quiet)
    with pytest.raises(UserError, match=r"must be one of safetensors, bf16, gptfast, deepseek, not 'onnx'\.$"):
        convert(open_checkpoint(str(folder)), tmp_path / "new", "onnx", torch.float32, quiet)
    for family in ("llama-biased", "qwen3"):
        with pytest.raises(
            UserError, match=r"has biases, q and k norms, .*, which gpt-fast's model\.pth cannot hold\.$"
        ):
            convert(open_checkpoint(str(models[family][1])), tmp_path / "new", "gptfast", torch.float32, quiet)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot be written: Not a directory\.$"):
        convert(open_checkpoint(str(folder)), tmp_path / "file" / "new", "safetensors", torch.float32, quiet)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


@pytest.mark.parametrize("form", conversion.FORMATS)
@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_conversion_leaves_nothing(form, stop, models, tmp_path):
    folder = models["deepseek-v3" if form == "deepseek" else "llama"][1]

    def progress(done: int, total: int) -> None:
        if done == total // 2:
            raise stop

    with pytest.raises(stop):
        convert(open_checkpoint(str(folder)), tmp_path / "new", form, torch.float32, progress)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", conversion.FORMATS)
def test_what_is_no_whole_model_is_not_converted(form, models, tmp_path):
    model, _, _ = models["llama"]
    tensors = state(model)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    model.config.save_pretrained(tmp_path / "source")
    torch.save(tensors, tmp_path / "source" / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"has no tensor 'model\.layers\.1\.mlp\.up_proj\.weight'"):
        convert(open_checkpoint(str(tmp_path / "source")), tmp_path / "new", form, torch.float32, lambda *_: None)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "tensor", "sentence"),
    [
        (
            "attention.wo.weight",
            torch.zeros(64, 64, dtype=torch.int8),
            r"stores '.*o_proj\.weight' as int8; weights must be float16, bfloat16, float32 or float64",
        ),
        ("attention.wo.weight", torch.eye(64).to_sparse(), r"stores '.*o_proj\.weight' as float32 sparse_coo; "),
        ("attention.wqkv.weight", torch.zeros(192, 64), r"'.*v_proj\.weight' of shape \[96, 64\]; .* \[32, 64\]"),
        ("attention.wqkv.weight", torch.zeros(()), r"'.*q_proj\.weight' of shape \[\]; .* \[64, 64\]"),
        ("ffn_norm.weight", "text", r"no tensor '.*0\.post_attention_layernorm\.weight'"),
    ],
)
def test_gptfast_tensors_that_are_not_the_models(name, tensor, sentence, models, tmp_path):
    model, _, _ = models["llama"]
    model.config.save_pretrained(tmp_path)
    odd = {"layers.x.y": torch.zeros(1), "layers.99999999999.attention.wo.weight": torch.zeros(1), 7: torch.zeros(1)}
    torch.save({**gptfast_tensors(model), **odd, f"layers.0.{name}": tensor}, tmp_path / "model.pth")
    with pytest.raises(UserError, match=sentence):
        logits(tmp_path)
