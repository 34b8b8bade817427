"""Loading: peak memory, progress, errors and random weights."""

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import torch
from text.checkpoints.random_gguf import write_random_gguf
from text.families import make

from genwright import LLM
from genwright.errors import UserError
from genwright.quant.formats import parse_format
from genwright.quant.packed import tensors_of
from genwright.rng import key
from genwright.text.architectures.weight_map import Part
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.checkpoints.protocol import Checkpoint
from genwright.text.export.convert import convert
from genwright.text.export.quantize import quantize
from genwright.text.loader import Loader

CASES = {
    "safetensors": ("safetensors", "bfloat16"),
    "widened": ("safetensors", "float32"),
    "pth": ("pth", "bfloat16"),
    "gguf": ("gguf", "bfloat16"),
    "random": ("random", "bfloat16"),
    "quantized folder": ("packed", "bfloat16"),
    "packed gguf": ("gguf", "bfloat16", "keep"),
    "int8": ("safetensors", "bfloat16", "int8"),
    "int4": ("safetensors", "bfloat16", "int4:g64:asym"),
    "fp8": ("safetensors", "bfloat16", "fp8"),
}
# Loads each case in a forked process in which torch is warm, and prints how anonymous memory grew.
MEASURE = """
import json, os, sys, threading, time
from math import prod
from pathlib import Path
import torch
from genwright import LLM
from genwright.quant.formats import parse_format
from genwright.quant.packed import tensors_of
from genwright.text.export.calibration import calibrated
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.export.quantize import quantize


def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))


def sample(peaks, done):
    while not done.is_set():
        peaks.append(anonymous())
        time.sleep(0.002)


def growth(function, *arguments):
    peaks, done = [], threading.Event()
    thread = threading.Thread(target=sample, args=(peaks, done))
    thread.start()
    before = anonymous()
    result = function(*arguments)
    done.set()
    thread.join()
    return max(*peaks, anonymous()) - before, result


def measure(path, dtype, quant=None):
    peak, llm = growth(lambda: LLM(path, device="cpu", dtype=dtype, quant=quant))
    parts = [llm.model.outer, *llm.model.blocks]
    largest = max(weight.nbytes for part in parts for weight in part.values() if isinstance(weight, torch.Tensor))
    layer = max(2 * prod(w.shape) for w in (llm.model.outer["head"], *llm.model.blocks[0].values()))
    tensors = [tensor for part in parts for weight in part.values() for tensor in tensors_of(weight)]
    size = sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())  # a tied head counts once
    return {"peak": peak, "size": size, "largest": max(largest, layer)}


def measure_quantizing(path, target, method):
    def work():
        checkpoint, form, cpu = open_checkpoint(path), parse_format("int4:g64:asym"), torch.device("cpu")
        windows = [list(range(i, i + 64)) for i in range(4)]
        layers = calibrated(checkpoint, form, windows, cpu) if method == "gptq" else None
        quantize(checkpoint, Path(target), form, cpu, lambda done, total: None, layers)

    return {"peak": growth(work)[0]}


torch.set_num_threads(1)
warm, cases = sys.argv[1], json.loads(sys.argv[2])
parse_format("int8").entries((8, 8))  # meta tensors make torch import its compiler
for dtype in ("float32", "bfloat16"):
    LLM(warm, device="cpu", dtype=dtype, quant="int8").logits([1, 2, 3])
for name, case in cases.items():
    if os.fork() == 0:
        found = measure_quantizing(*case) if name in ("rtn", "gptq") else measure(*case)
        print(json.dumps([name, found]), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, name
"""


@pytest.fixture(scope="module")
def growth(full_size: bool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """In bytes, of a model of 1.1 GB in bfloat16, or of 155 MB."""
    folder = tmp_path_factory.mktemp("large")
    model = "random:tinyllama-1.1b,layers=10" if full_size else "random:stories110M,layers=4"
    convert(open_checkpoint(model), folder / "safetensors", "safetensors", torch.bfloat16, lambda done, total: None)
    checkpoint = open_checkpoint(str(folder / "safetensors"))
    convert(checkpoint, folder / "gptfast", "gptfast", torch.bfloat16, lambda done, total: None)
    write_q8(checkpoint, folder / "model.gguf")
    make("llama", folder / "warm")
    quantize(checkpoint, folder / "packed", parse_format("int4"), torch.device("cpu"), lambda done, total: None)
    paths = {"safetensors": "safetensors", "pth": "gptfast", "gguf": "model.gguf", "packed": "packed"}
    cases = {
        name: (str(folder / paths[form]) if form in paths else model, *rest) for name, (form, *rest) in CASES.items()
    }
    cases |= {method: (str(folder / "safetensors"), str(folder / method), method) for method in ("rtn", "gptq")}
    command = [sys.executable, "-c", MEASURE, str(folder / "warm"), json.dumps(cases)]
    env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}  # else glibc keeps freed memory in fragments
    lines = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout.splitlines()
    return dict(json.loads(line) for line in lines)


def write_q8(checkpoint: Checkpoint, path: Path) -> None:
    """Matrices as Q8_0; in which order the rows of q and k lie does not matter here."""
    import gguf  # which a GPU machine may lack

    cfg = checkpoint.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(cfg.layers)
    writer.add_context_length(cfg.max_context)
    writer.add_embedding_length(cfg.dim)
    writer.add_feed_forward_length(cfg.ffn_dim)
    writer.add_head_count(cfg.heads)
    writer.add_head_count_kv(cfg.kv_heads)
    writer.add_layer_norm_rms_eps(cfg.norm_eps)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, cfg.layers)
    for name in checkpoint.names():
        tensor = checkpoint.tensor(name, torch.float32)
        kind = gguf.GGMLQuantizationType.Q8_0 if tensor.dim() > 1 else gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(tensor.numpy(), kind)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("case", CASES)
def test_loading_holds_no_second_copy(case: str, growth: dict[str, dict[str, int]]) -> None:
    found = growth[case]
    allowed = found["size"] + found["largest"] + 0.05 * found["size"]
    assert 0.8 * found["size"] < found["peak"] < allowed, found  # some of it may fit where the warm model was


@pytest.mark.parametrize("method", ["rtn", "gptq"])
def test_quantizing_a_file_holds_one_layer(method: str, growth: dict[str, dict[str, int]]) -> None:
    """Or one matrix and the scratch of its rows; GPTQ's layer is in float32, with its Hessians and their factors."""
    embedding = growth["safetensors"]["largest"]
    assert growth[method]["peak"] < (1.5 if method == "rtn" else 4.5) * embedding, growth[method]


@pytest.mark.parametrize("experts", [0, 4])
def test_the_planned_size_of_gguf_types_is_what_is_loaded(experts: int, tmp_path: Path) -> None:
    def kind(name: str) -> str:
        return "Q6_K" if "attn_v" in name or "down" in name else "Q2_K" if "embd" in name else "Q4_K"

    checkpoint = open_checkpoint(str(write_random_gguf(tmp_path / "model.gguf", kind, experts)))
    load = Loader(checkpoint, torch.bfloat16, torch.device("cpu"))
    model = load.model(128)
    weights = [weight for block in (model.outer, *model.blocks) for weight in block.values()]
    assert load.total_bytes() == sum(tensor.nbytes for weight in weights for tensor in tensors_of(weight))


def test_progress_counts_every_tensor(tmp_path: Path) -> None:
    model = make("qwen3", tmp_path)
    calls: list[tuple[int, int]] = []
    LLM(tmp_path, progress=lambda *call: calls.append(call))
    count = len(list(model.named_parameters()))  # tied: the head is not one of them
    assert calls == [(done, count) for done in range(1, count + 1)]


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    model = make("llama", tmp_path, max_shard_size="60KB")
    index = tmp_path / "model.safetensors.index.json"
    where = json.loads(index.read_text())
    del where["weight_map"]["model.layers.2.mlp.down_proj.weight"]
    index.write_text(json.dumps(where))
    with pytest.raises(UserError, match=r"has no tensor 'model\.layers\.2\.mlp\.down_proj\.weight', which its config"):
        LLM(tmp_path)
    where["weight_map"]["model.layers.2.mlp.down_proj.weight"] = where["weight_map"]["lm_head.weight"]
    index.write_text(json.dumps(where))
    with pytest.raises(
        UserError, match=r"must hold the tensor 'model\.layers\.2\.mlp\.down_proj\.weight' but does not"
    ):
        LLM(tmp_path)
    assert model.config.num_hidden_layers == 3


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    make("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 97}))
    sentence = (
        r"has 'model\.layers\.0\.mlp\.gate_proj\.weight' of shape \[96, 64\]; its configuration needs \[97, 64\]\.$"
    )
    with pytest.raises(UserError, match=sentence):
        LLM(tmp_path)


def test_random_weights_are_a_function_of_seed_name_and_element() -> None:
    names = ["model.embed_tokens.weight", "lm_head.weight", "model.layers.1.mlp.up_proj.weight"]
    zero, one = (open_checkpoint(f"random:stories15M{seed}") for seed in ("", ",seed=1"))
    again = open_checkpoint("random:STORIES15m,seed=0,layers=2")
    drawn = []
    for name in names:
        assert torch.equal(zero.tensor(name), again.tensor(name))
        assert torch.equal(zero.tensor(name, torch.float32).bfloat16(), zero.tensor(name, torch.bfloat16))
        drawn += [checkpoint.tensor(name, torch.float32).flatten()[:200_000] for checkpoint in (zero, one)]
    for index, some in enumerate(drawn):
        torch.testing.assert_close(torch.stack((some.mean(), some.std())), torch.tensor([0, 0.02]), rtol=0, atol=2e-4)
        assert len(some.unique()) > 0.98 * len(some)
        for other in drawn[:index]:
            assert torch.corrcoef(torch.stack((some, other)))[0, 1].abs() < 0.01
        for shift in (1, 288, 1 << 15):  # neighbours in a row, in a column, and in what is drawn at once
            assert torch.corrcoef(torch.stack((some[shift:], some[:-shift])))[0, 1].abs() < 0.01
    assert abs(zero.tensor("model.norm.weight", torch.float32).mean() - 1) < 0.01


def test_random_weights_never_change() -> None:
    """The values of element 7 by hand: published figures and saved texts depend on them."""
    name = "model.layers.1.mlp.up_proj.weight"  # 768 x 288, in seven pieces
    bits = _mix(_mix(7) ^ key(0, zlib.crc32(name.encode()), 3))
    expected = ((bits - (bits >> 31 << 32) >> 8) + 0.5) * 0.02 * 12**0.5 / 2**24
    drawn = open_checkpoint("random:stories15M").tensor(name, torch.float32).flatten()
    assert drawn[3 * 2**15 + 7].item() == pytest.approx(expected, rel=1e-6)
    assert zlib.crc32(drawn.numpy().tobytes()) == 0x136EB65D


@pytest.mark.gpu
def test_random_weights_are_the_same_on_every_device() -> None:
    checkpoint = open_checkpoint("random:tinyllama-1.1b,layers=1")
    for name in ("model.embed_tokens.weight", "model.norm.weight"):  # more and less than is drawn at a time
        for dtype in (torch.float32, torch.bfloat16):
            assert torch.equal(checkpoint.tensor(name, dtype, device="cuda").cpu(), checkpoint.tensor(name, dtype))
    for part in (Part(0, 20_001, 300), Part(1, 77, 40)):
        here, there = (checkpoint.tensor("lm_head.weight", torch.float32, part, at) for at in ("cpu", "cuda"))
        assert torch.equal(there.cpu(), here)


def _mix(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D % 2**32
    x ^= x >> 15
    x = x * 0x846CA68B % 2**32
    return x ^ x >> 16


def test_random_models_answer_alike() -> None:
    first, second, other = (LLM(f"random:stories15M,layers=1{seed}") for seed in ("", ",seed=0", ",seed=7"))
    assert torch.equal(first.logits([1, 2, 3]), second.logits([1, 2, 3]))
    assert not torch.equal(first.logits([1, 2, 3]), other.logits([1, 2, 3]))
    assert first.tokenizer is None


def test_random_models_have_gptfasts_names() -> None:
    checkpoint = open_checkpoint("random:7B,layers=1")
    assert (checkpoint.config.dim, checkpoint.config.layers) == (4096, 1)
    assert checkpoint.names() == open_checkpoint("random:llama-2-7b,layers=1").names()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("random:", r"no model shape named ''; known are llama-7b, "),
        ("random:gpt5", r"no model shape named 'gpt5'; known are llama-7b, "),
        ("random:7B,layers=x", r"^The layers and seed of 'random:7B,.*' must be whole numbers\.$"),
        ("random:7B,layers=", r"^The layers and seed of 'random:7B,.*' must be whole numbers\.$"),
        ("random:7B,layers", r"^The layers and seed of 'random:7B,.*' must be whole numbers\.$"),
        ("random:7B,seed=1.5", r"^The layers and seed of 'random:7B,.*' must be whole numbers\.$"),
        ("random:7B,layers=0", r"'num_hidden_layers' must be a whole number between 1 and 4096, not 0\.$"),
        ("random:7B,layers=5000", r"'num_hidden_layers' must be a whole number between 1 and 4096, not 5000\.$"),
        ("random:7B,heads=4", r"has the unknown option 'heads'; options are layers and seed\.$"),
        ("random:7B,", r"has the unknown option ''; options are layers and seed\.$"),
        ("random:llama-3.1-405b", r"The weights take 8[0-9]{2}\.[0-9]{2} GB .* may be used"),
    ],
)
def test_what_random_cannot_be_is_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        LLM(name, dtype="bfloat16")
