"""Tiny Llamas in the layouts of other libraries, written here value by value from their definitions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from text.families import make

SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 96}
Tensors = dict[str, torch.Tensor]
# Makes the tensors that store a random matrix of a shape, by the ends of their names, and its weights in float64.
Maker = Callable[[tuple[int, int], np.random.Generator], tuple[Tensors, np.ndarray]]


def words(values: np.ndarray, bits: int, order: tuple[int, ...] = tuple(range(32))) -> torch.Tensor:
    """int32 words along the last axis; `order` has the place in each word's run of values of its i-th lowest bits."""
    per = 32 // bits
    padded = np.concatenate((values, np.zeros((*values.shape[:-1], -values.shape[-1] % per), values.dtype)), -1)
    runs = padded.astype(np.uint32).reshape(*values.shape[:-1], -1, per)
    packed = np.zeros(runs.shape[:-1], np.uint32)
    for place in range(per):
        packed |= runs[..., order[place]] << np.uint32(bits * place)
    return torch.from_numpy(packed.view(np.int32).copy())


def random_groups(
    shape: tuple[int, int], groups: int, rng: np.random.Generator, dtype: torch.dtype = torch.float16
) -> torch.Tensor:
    """Random scales [rows, groups]."""
    return torch.from_numpy(rng.uniform(0.005, 0.02, (shape[0], groups))).to(dtype)


def widen(q: np.ndarray, zeros: np.ndarray, scales: torch.Tensor, groups: np.ndarray | None = None) -> np.ndarray:
    """(q - z) s, all [rows, ...], in float64."""
    columns = q.shape[1]
    groups = np.arange(columns) // (columns // scales.shape[1]) if groups is None else groups
    return (q - zeros.astype(np.float64)[:, groups]) * scales.double().numpy()[:, groups]


def awq(group: int) -> Maker:
    def make_matrix(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        q, scales = rng.integers(0, 16, shape), random_groups(shape, shape[1] // group, rng)
        zeros, order = rng.integers(0, 16, tuple(scales.shape)), (0, 2, 4, 6, 1, 3, 5, 7)
        stored = {"qweight": words(q.T, 4, order), "qzeros": words(zeros.T, 4, order), "scales": scales.T.contiguous()}
        return stored, widen(q, zeros, scales)

    return make_matrix


def gptq(bits: int, group: int, symmetric: bool, act_order: bool = False, less: int = 1) -> Maker:
    def make_matrix(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        q, scales = rng.integers(0, 1 << bits, shape), random_groups(shape, shape[1] // group, rng)
        zeros = rng.integers(1, 1 << bits, tuple(scales.shape))
        zeros[:] = 1 << bits - 1 if symmetric else zeros
        groups = np.arange(shape[1]) // group
        if act_order:
            rng.shuffle(groups)
        stored = {"qweight": words(q, bits).T.contiguous(), "qzeros": words(zeros.T - less, bits)}
        stored |= {"scales": scales.T.contiguous(), "g_idx": torch.from_numpy(groups.astype(np.int32))}
        return stored | {"bias": torch.zeros(shape[0]).half()}, widen(q, zeros, scales, groups)

    return make_matrix


def compressed(bits: int, groups: Callable[[int], int], symmetric: bool = True, packed: bool = True) -> Maker:
    def make_matrix(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        half = 1 << bits - 1
        q, scales = rng.integers(-half, half, shape), random_groups(shape, groups(shape[1]), rng, torch.bfloat16)
        zeros = rng.integers(-half, half, tuple(scales.shape)) * (not symmetric)
        stored: Tensors = {"weight_scale": scales}
        if packed:
            stored |= {"weight_packed": words(q + half, bits), "weight_shape": torch.tensor(shape)}
            stored |= {} if symmetric else {"weight_zero_point": words((zeros + half).T, bits).T.contiguous()}
        else:
            stored |= {"weight": torch.from_numpy(q).to(torch.int8), "input_scale": torch.ones(1)}
        return stored, widen(q, zeros, scales)

    return make_matrix


def floats8(scales_shape: Callable[[tuple[int, int]], tuple[int, ...]], names: tuple[str, str]) -> Maker:
    def make_matrix(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        values = torch.from_numpy(rng.normal(0, 10, shape)).to(torch.float8_e4m3fn)
        scales = torch.from_numpy(rng.uniform(0.005, 0.02, scales_shape(shape))).bfloat16()
        whole = scales.double().numpy()
        if whole.shape[-1:] == (-(-shape[1] // 128),) and shape[1] > 128:
            whole = whole.repeat(128, 0).repeat(128, 1)[: shape[0], : shape[1]]
        return dict(zip(names, (values, scales), strict=True)), values.double().numpy() * whole

    return make_matrix


def codebook(kind: str, double: bool) -> Maker:
    """bitsandbytes' blocks of 64 of any 16 values; with double quantization, blocks of 256 of any 256 values."""

    def make_matrix(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        count, blocks = shape[0] * shape[1], -(-shape[0] * shape[1] // 64)
        q, table = rng.integers(0, 16, count), np.sort(rng.uniform(-1, 1, 16)).astype(np.float32)
        stored = {"weight": torch.from_numpy((q[::2] << 4 | q[1::2]).astype(np.uint8))[:, None]}
        stored["weight.quant_map"] = torch.from_numpy(table)
        state: dict[str, Any] = {"quant_type": kind, "blocksize": 64, "dtype": "bfloat16", "shape": list(shape)}
        largest = rng.uniform(0.05, 0.2, blocks).astype(np.float32)
        if double:
            codes, map2 = rng.integers(0, 256, blocks).astype(np.uint8), rng.uniform(-1, 1, 256).astype(np.float32)
            nested = rng.uniform(0.01, 0.02, -(-blocks // 256)).astype(np.float32)
            state |= {"nested_blocksize": 256, "nested_offset": 0.1, "nested_dtype": "float32"}
            largest = map2[codes] * nested[np.arange(blocks) // 256] + np.float32(0.1)
            stored |= {"weight.nested_absmax": torch.from_numpy(nested)}
            stored |= {"weight.nested_quant_map": torch.from_numpy(map2), "weight.absmax": torch.from_numpy(codes)}
        else:
            stored["weight.absmax"] = torch.from_numpy(largest)
        text = json.dumps(state).encode()
        stored[f"weight.quant_state.bitsandbytes__{kind}"] = torch.tensor(list(text), dtype=torch.uint8)
        return stored, (table[q] * largest[np.arange(count) // 64]).astype(np.float64).reshape(shape)

    return make_matrix


def scb(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
    q, largest = rng.integers(-127, 128, shape), torch.from_numpy(rng.uniform(0.1, 0.4, shape[0])).float()
    scales = (largest / 127).double().numpy()[:, None]
    stored = {"weight": torch.from_numpy(q).to(torch.int8), "SCB": largest}
    return stored | {"weight_format": torch.tensor(0, dtype=torch.uint8)}, q * scales


def torchao(kind: str) -> Maker:
    """Int4Tensor: w = q s + z with two's complement nibbles, scales [groups, rows]; the others (q - z) s."""

    def make_matrix(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        bits = 8 if kind == "Int8Tensor" else 4
        q = rng.integers(-(1 << bits - 1), 1 << bits - 1, shape)
        scales = random_groups(shape, 1 if bits == 8 else shape[1] // 32, rng, torch.bfloat16)
        if kind == "Int8Tensor":
            return {"_weight_qdata": torch.from_numpy(q).to(torch.int8), "_weight_scale": scales}, widen(
                q, np.zeros(scales.shape), scales
            )
        if kind == "IntxUnpackedToInt8Tensor":
            zeros = rng.integers(-8, 8, tuple(scales.shape))
            stored = {"_weight_qdata": torch.from_numpy(q).to(torch.int8), "_weight_scale": scales}
            return stored | {"_weight_zero_point": torch.from_numpy(zeros).to(torch.int8)}, widen(q, zeros, scales)
        least = torch.from_numpy(rng.uniform(-0.1, 0.1, tuple(scales.shape))).bfloat16()
        wide = widen(q, np.zeros(scales.shape), scales) + least.double().numpy().repeat(32, 1)
        if kind == "Int4TilePackedTo4dTensor":
            from quant.test_tinygemm import pack_tiles

            tiles = pack_tiles(torch.from_numpy(q + 8), 2)
            table = torch.stack((scales, least), -1).transpose(0, 1).contiguous()
            return {"_weight_qdata": tiles, "_weight_scale_and_zero": table}, wide
        nibbles = (q & 15)[:, ::2] | (q & 15)[:, 1::2] << 4
        stored = {"_weight_qdata": torch.from_numpy(nibbles.astype(np.uint8)).view(torch.int8)}
        return stored | {"_weight_scale": scales.T.contiguous(), "_weight_zero_point": least.T.contiguous()}, wide

    return make_matrix


ONE, OF_32 = (lambda columns: 1), (lambda columns: columns // 32)
BLOCKS = ("weight", "weight_scale")
AWQ, GPTQ = {"quant_method": "awq", "bits": 4, "version": "gemm"}, {"quant_method": "gptq", "bits": 4}
COMPRESSED, BNB = {"quant_method": "compressed-tensors"}, {"quant_method": "bitsandbytes"}
AO: dict[str, Any] = {"quant_method": "torchao"}
_AO_CLASSES = ("Int8Tensor", "Int4Tensor", "IntxUnpackedToInt8Tensor", "Int4TilePackedTo4dTensor")
_AO8 = ("_weight_qdata", "_weight_scale")

# Name: the quantization_config, the maker, and the format that holds it (None: read as floats).
KINDS: dict[str, tuple[dict[str, Any], Maker, str | None]] = {
    "awq": (AWQ, awq(32), "int4:g32:asym:f32"),
    "gptq sym": (GPTQ, gptq(4, 32, True), "int4:g32"),
    "gptq asym": (GPTQ, gptq(4, 64, False), "int4:g64:asym:f32"),
    "gptq act-order": (GPTQ, gptq(4, 32, False, act_order=True), None),
    "gptq v2": ({**GPTQ, "checkpoint_format": "gptq_v2"}, gptq(4, 32, False, less=0), "int4:g32:asym:f32"),
    "gptq 8 bits": ({**GPTQ, "bits": 8}, gptq(8, 32, True), "int8:g32"),
    "gptq 8 bits asym": ({**GPTQ, "bits": 8}, gptq(8, 32, False), None),
    "gptq 2 bits": ({**GPTQ, "bits": 2}, gptq(2, 32, False), "int4:g32:asym:f32"),
    "compressed int4": (COMPRESSED, compressed(4, OF_32), "int4:g32"),
    "compressed int4 asym": (COMPRESSED, compressed(4, OF_32, False), "int4:g32:asym:f32"),
    "compressed int4 channel": (COMPRESSED, compressed(4, ONE), "int4:g128"),
    "compressed int8": (COMPRESSED, compressed(8, ONE), "int8"),
    "compressed int8 groups": (COMPRESSED, compressed(8, OF_32), "int8:g32"),
    "compressed int8 plain": (COMPRESSED, compressed(8, ONE, packed=False), "int8"),
    "compressed fp8 tensor": (COMPRESSED, floats8(lambda shape: (1,), BLOCKS), "fp8:channel"),
    "compressed fp8 channel": (COMPRESSED, floats8(lambda shape: (shape[0], 1), BLOCKS), "fp8:channel"),
    "bitsandbytes nf4": (BNB, codebook("nf4", False), None),
    "bitsandbytes fp4 double": (BNB, codebook("fp4", True), None),
    "bitsandbytes int8": (BNB, scb, "int8"),
    **{
        f"torchao {kind}": (AO, torchao(kind), "int8" if kind == "Int8Tensor" else "int4:g32:asym:f32")
        for kind in _AO_CLASSES
    },
    "torchao Float8Tensor": (AO, floats8(lambda shape: (shape[0], 1), _AO8), "fp8:channel"),
}


def write_library_folder(root: Path, kind: str) -> tuple[Path, Path]:
    """The quantized folder, and a plain one of the same weights in float32."""
    model = make("llama", root / "plain", SIZES)
    settings, maker, _ = KINDS[kind]
    plain, rng = load_file(root / "plain" / "model.safetensors"), np.random.default_rng(0)
    quantized, metadata = dict(plain), {}
    for name in [name for name in plain if name.endswith("_proj.weight")]:
        stored, wide = maker((plain[name].shape[0], plain[name].shape[1]), rng)
        stem = name.removesuffix("weight")
        del quantized[name]
        quantized |= {stem + end: tensor for end, tensor in stored.items()}
        plain[name] = torch.from_numpy(wide).float()
        kind_data = (
            {"target_dtype": {"_type": "torch.dtype", "_data": "int4"}}
            if kind.endswith("IntxUnpackedToInt8Tensor")
            else {}
        )
        metadata[name] = json.dumps({"_type": kind.removeprefix("torchao "), "_data": kind_data})
    (root / "quantized").mkdir()
    config = {**model.config.to_dict(), "quantization_config": settings}
    (root / "quantized" / "config.json").write_text(json.dumps(config))
    save_file(plain, root / "plain" / "model.safetensors", {"format": "pt"})
    save_file(quantized, root / "quantized" / "model.safetensors", {"format": "pt", **metadata})
    return root / "quantized", root / "plain"
