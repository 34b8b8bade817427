"""Damaged Hugging Face folders: each loads or ends in one sentence; no crash, hang or large allocation."""

import json
import random
import re
import resource
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from text.families import make

from genwright import LLM
from genwright.errors import UserError

LATER = ("opt-350m", "mixtral", "qwen2-moe", "deepseek-v2", "deepseek-v3")
FAMILIES = ("llama", "llama-3.2", "llama-linear", "mistral", "qwen2-yarn", "qwen2-window", "qwen3", *LATER)
KILOBYTES = 64 << 10  # how much the peak memory may grow over all mutations


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small models in shards; "single" is in one safetensors file, "bin" in one of PyTorch's."""
    made = {family: tmp_path_factory.mktemp(family) for family in (*FAMILIES, "single", "bin")}
    for family in FAMILIES:
        make(family, made[family], max_shard_size="100KB")
        shapes = json.loads((made[family] / "config.json").read_text())
        (made[family] / "config.json").write_text(json.dumps(shapes))
    model = make("llama", made["single"])
    model.config.save_pretrained(made["bin"])
    torch.save({name: tensor.clone() for name, tensor in model.state_dict().items()}, made["bin"] / "pytorch_model.bin")
    for folder in made.values():
        outcome(folder)  # first use allocates memory once
    return made


def outcome(folder: Path) -> str:
    """Load and compute; "loaded", or the first words of the sentence."""
    try:
        assert LLM(folder, device="cpu").logits([1, 2, 3]).shape[0] == 3
        said = "loaded"
    except UserError as error:
        said = str(error)
        assert said.endswith(".") and len(said.splitlines()) == 1 and len(said) < 1000 and said.isprintable(), said
    return said


def run(mutations: Iterator[tuple[Path, bytes]]) -> Counter[str]:
    """Put each mutation in its file's place, and the file back afterwards."""
    results: Counter[str] = Counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path, data in mutations:
        whole = path.read_bytes()
        path.write_bytes(data)
        try:
            results["loaded" if outcome(path.parent) == "loaded" else "refused"] += 1
        except Exception as error:
            raise AssertionError(f"{path.name}: {data[:3000]!r}") from error
        finally:
            path.write_bytes(whole)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < KILOBYTES
    return results


def nested(depth: int) -> Any:
    """Lists in lists: Python's own limit of recursion is 1,000."""
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 63, 64, 65, 4096, 1 << 20, 1 << 30, 1 << 31, 1 << 62, -(1 << 63), 10**40),
    *(0.0, 0.5, -0.5, 1.0, 1e-300, 1e29, 1e308, float("nan"), float("inf"), float("-inf"), 64.0),
    *("", "64", "llama3", "yarn", "linear", "dynamic", "factors", "qwen3", "gelu", "bfloat16", "int8", "é\n\0\ud800"),
    *("x" * 100_000, "LlamaForCausalLM", "sliding_attention", "../../etc/passwd", "\u202e\u2028"),
    *([], {}, [None], [[]], [1, 2], [1 << 80], ["LlamaForCausalLM"], {"rope_type": "yarn", "factor": 4.0}, nested(200)),
    {"rope_type": "factors", "factors": [1.0] * 5},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0},
]


def mutate(draw: random.Random, value: dict[str, Any], more_keys: tuple[str, ...]) -> None:
    """Change, drop, add, swap or nest an entry, at any depth."""
    inner = [item for item in value.values() if isinstance(item, dict) and item]
    if inner and draw.random() < 0.4:
        mutate(draw, draw.choice(inner), more_keys)
        return
    keys = list(value)
    key = draw.choice(keys)
    kind = draw.randrange(8)
    if kind < 3:
        value[key] = draw.choice(VALUES)
    elif kind == 3:
        del value[key]
    elif kind == 4:
        value[draw.choice(more_keys)] = draw.choice(VALUES)
    elif kind == 5:
        other = draw.choice(keys)
        value[key], value[other] = value[other], value[key]
    elif kind == 6:
        value[key] = draw.choice([[value[key]], {key: value[key]}, str(value[key]), [value[key]] * 100])
    elif isinstance(value[key], int | float):
        value[key] = value[key] * draw.choice([-1, 0, 2, 0.5, 1 << 20, 1e300]) + draw.choice([0, 1, -1])


CONFIG_KEYS = (
    *("sliding_window", "use_sliding_window", "layer_types", "max_window_layers", "head_dim", "rope_theta", "type"),
    *("rope_scaling", "rope_parameters", "original_max_position_embeddings", "factor", "beta_fast", "beta_slow"),
    *("attention_factor", "torch_dtype", "dtype", "attention_bias", "mlp_bias", "hidden_act", "tie_word_embeddings"),
    *("num_local_experts", "num_experts", "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step"),
    *("mlp_only_layers", "n_group", "topk_group", "topk_method", "scoring_func", "first_k_dense_replace", "mscale"),
    *("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "num_nextn_predict_layers", "quantization_config"),
    *("mscale_all_dim", "word_embed_proj_dim", "do_layer_norm_before", "activation_function", "n_shared_experts"),
    *("rope_type", "factors", "low_freq_factor", "high_freq_factor", "num_key_value_heads", "eos_token_id"),
)


def as_text(draw: random.Random, value: object) -> bytes:
    """As JSON, now and then with damage to the text itself."""
    data = json.dumps(value).encode()
    at = draw.randrange(len(data))
    kind = draw.randrange(20)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
    if kind == 2:  # some of these are just within Python's limit of recursion
        depth = draw.choice([draw.randrange(800, 1000), 100_000])
        return re.sub(rb": [^,{]+", lambda match: b": " + b"[" * depth + b"]" * depth, data, count=draw.randrange(1, 4))
    return data


def test_configurations(folders: dict[str, Path], full_size: bool) -> None:
    draw = random.Random(1)

    def mutations() -> Iterator[tuple[Path, bytes]]:
        for _ in range(1000 if full_size else 160):
            path = folders[draw.choice(FAMILIES)] / "config.json"
            config = json.loads(path.read_bytes())
            for _ in range(draw.choice((1, 1, 1, 2, 4))):
                mutate(draw, config, CONFIG_KEYS)
            yield path, as_text(draw, config)

    results = run(mutations())
    assert min(results["loaded"], results["refused"]) > 20, results


def test_indexes(folders: dict[str, Path], full_size: bool) -> None:
    draw = random.Random(2)
    path = folders["llama"] / "model.safetensors.index.json"
    shards = sorted(file.name for file in path.parent.glob("*.safetensors"))
    files = ["../x", "..", ".", "", "/etc/passwd", "/dev/zero", "config.json", "missing.safetensors", "a/b", "x" * 5000]
    files += ["\0", "\ud800", "x\ny", "model.bin", str(path.parent / shards[0]), f"./{shards[0]}", *shards]
    tensors = ["", "model.norm.weight", "x\ny", "\ud800", "model.layers.9.mlp.up_proj.weight", "é" * 1000]

    def mutations() -> Iterator[tuple[Path, bytes]]:
        for _ in range(350 if full_size else 50):
            index = json.loads(path.read_bytes())
            where = index["weight_map"]
            for _ in range(draw.choice((1, 1, 2))):
                kind = draw.randrange(5)
                if kind == 0:
                    mutate(draw, index, ("weight_map", "metadata"))
                elif kind == 1:
                    where[draw.choice(list(where))] = draw.choice([*files, *VALUES])
                elif kind == 2:
                    where[draw.choice(tensors)] = draw.choice(files)
                elif kind == 3:
                    where.update(dict.fromkeys(where, draw.choice(files)))
                else:
                    del where[draw.choice(list(where))]
            yield path, as_text(draw, index)

    results = run(mutations())
    assert results["refused"] > 20, results


def test_safetensors_files(folders: dict[str, Path], full_size: bool) -> None:
    draw = random.Random(3)
    path = folders["single"] / "model.safetensors"
    whole = path.read_bytes()
    size = struct.unpack("<Q", whole[:8])[0]
    words = [b"F32", b"shape", b"data_offsets", b"model.", b"64", b"[", b"]", b"0", b"9", b"}", b",", b"96", b"199"]

    def with_header(header: bytes) -> bytes:
        return struct.pack("<Q", len(header)) + header + whole[8 + size :]

    def of_header(header: dict[str, Any]) -> bytes:
        name = draw.choice(list(header))
        entry = header[name]
        if draw.random() < 0.2:
            header[draw.choice(["x\ny", "", "é", name + "x"])] = header.pop(name)
        elif draw.random() < 0.5:
            entry["dtype"] = draw.choice(["I32", "U32", "F16", "F64", "F8_E4M3", "BOOL", "C64", "", "x\n", 7, None])
        else:
            mutate(draw, header, ("dtype", "shape", "data_offsets", name))
        return with_header(json.dumps(header).encode())

    def damage() -> bytes:
        at = draw.randrange(8 + size)
        kind = draw.randrange(7)
        if kind == 0:
            return whole[: draw.randrange(len(whole))]
        if kind == 1:
            return whole[:at] + bytes([draw.randrange(256)]) + whole[at + 1 :]
        if kind == 2:
            return (
                struct.pack("<Q", draw.choice([0, 1, size - 1, size + 8, 1 << 27, 1 << 40, (1 << 64) - 1])) + whole[8:]
            )
        if kind == 3:
            return with_header(
                whole[8 : 8 + size].replace(draw.choice(words), draw.choice(words), draw.randrange(1, 4))
            )
        if kind == 4:
            return whole + draw.randbytes(draw.randrange(1, 100))
        return of_header({k: v for k, v in json.loads(whole[8 : 8 + size]).items() if k != "__metadata__"})

    results = run((path, damage()) for _ in range(450 if full_size else 60))
    assert results["refused"] > 20, results


def test_pytorch_files(folders: dict[str, Path], full_size: bool) -> None:
    draw = random.Random(4)
    path = folders["bin"] / "pytorch_model.bin"
    whole = path.read_bytes()
    pickled = whole.index(b"data.pkl") + 8, whole.index(b"PK\3\4", 100)

    def damage() -> bytes:
        at = draw.randrange(*pickled)
        return draw.choice(
            [
                whole[: draw.randrange(len(whole))],
                whole[: len(whole) - draw.randrange(1, 2000)],
                whole[:at] + bytes([draw.randrange(256)]) + whole[at + 1 :],
                whole[:at] + draw.randbytes(4) + whole[at + 4 :],
            ]
        )

    results = run((path, damage()) for _ in range(200 if full_size else 30))
    assert results["refused"] > 10, results
