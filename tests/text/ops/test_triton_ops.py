"""The triton backend against the torch backend: attention of mixed steps, residuals, and products of GGUF weights."""

import pytest
import torch
from quant.random_blocks import QUANTIZED, random_weights

from genwright.quant.formats import parse_format
from genwright.quant.ggml import repack
from genwright.quant.mixed import Mixed
from genwright.quant.table import PackedTable
from genwright.text.cache.layout import Cache, CacheSpec, LayerCache, LayerSpec
from genwright.text.config import ROPE, Attention, Mla
from genwright.text.ops.rope import cos_sin
from genwright.text.ops.step import Chunk, StepBuffers
from genwright.text.ops.torch_ops import TorchOps

PAGES, HEADS, KV_HEADS = 12, 2, 1
# Of each sequence: tokens of the step, and position of the first.
DECODING, CHUNKS = [(1, 70), (1, 0), (1, 130)], [(40, 50), (2, 0)]
STEPS = {
    "decoding": DECODING,
    "chunks": CHUNKS,
    "decoding and chunks": DECODING + CHUNKS,
    "decoding, proposed tokens and chunks": [*DECODING, (4, 66), (4, 9), *CHUNKS],
}


def filled(head_dim: int, dtype: torch.dtype, bits: int | None, device: str) -> LayerCache:
    spec = CacheSpec([LayerSpec(dict.fromkeys(("k", "v"), (KV_HEADS, head_dim)))], dtype, bits)
    cache = Cache(spec, PAGES * 3, torch.device(device)).layers[0]
    generator = torch.Generator().manual_seed(1)
    for name in ("k", "v"):
        rows = torch.randn(PAGES * 3 * 64, KV_HEADS, head_dim, generator=generator).to(device, dtype)
        cache.write(name, torch.arange(len(rows), device=device), rows)
    return cache


def check(ops, sequences, head_dim, dtype, bits, device, window=None, bound=1e-5):
    """Both backends on the same step: the outputs, and the caches after it."""
    tables = cos_sin(1 / 100.0 ** torch.arange(0, 1, 2 / head_dim), 1.0, torch.arange(192))
    rope_tables = {ROPE: tuple(table.to(device) for table in tables)}
    pages = torch.randperm(PAGES * 3).tolist()
    chunks = [
        Chunk([0] * count, start, [pages[3 * i : 3 * i + -(-(start + count) // 64)]])
        for i, (count, start) in enumerate(sequences)
    ]
    buffers = StepBuffers(256, PAGES, 3, torch.device(device), rope_tables=rope_tables)
    qkv = torch.randn(sum(count for count, _ in sequences), (HEADS + 2 * KV_HEADS) * head_dim).to(device, dtype)
    weights = {name: (torch.rand(head_dim) + 0.5).to(device, dtype) for name in ("q_norm", "k_norm")}
    attention = Attention(head_dim**-0.5, window=window, norm_eps=1e-5)
    ours, theirs = (filled(head_dim, dtype, bits, device) for _ in range(2))
    out = ops.rope_attend(qkv, weights, attention, ours, buffers.fill(chunks))
    expected = TorchOps().rope_attend(qkv, weights, attention, theirs, buffers.fill(chunks))
    torch.testing.assert_close(out, expected, atol=bound, rtol=bound)
    for name in ("k", "v"):
        mine, rows = (cache.read(name, torch.arange(PAGES * 3, device=device), dtype) for cache in (ours, theirs))
        if bits is None:
            torch.testing.assert_close(mine, rows, atol=bound, rtol=bound)
        else:  # a sum in another order may round a value to the next integer
            differs = (mine - rows).abs() > 1e-4
            assert differs.sum() < 10 and (mine - rows).abs().max() < {8: 0.1, 4: 1}[bits]


@pytest.mark.parametrize("sequences", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("window", [None, 30])
def test_attention_equals_the_torch_backend(ops, sequences, window, device):
    check(ops, sequences, 80, torch.float32, None, device, window)  # the CUDA kernel does not support 80


@pytest.mark.parametrize("sequences", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("bits", [8, 4])
def test_attention_over_a_quantized_cache_equals_the_torch_backend(ops, sequences, bits, device):
    check(ops, sequences, 64, torch.float32, bits, device, bound=0.05)


@pytest.mark.parametrize("sequences", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize(("head_dim", "dtype"), [(64, torch.float32), (128, torch.bfloat16), (128, torch.float16)])
def test_attention_with_the_cuda_kernel_equals_the_torch_backend(ops, sequences, window, head_dim, dtype, device):
    if device == "cpu" and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter does not multiply bf16")
    bound = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}[dtype]
    check(ops, sequences, head_dim, dtype, None, device, window, bound)


def latent_cache(mla: Mla, dtype: torch.dtype, device: str) -> LayerCache:
    spec = CacheSpec([LayerSpec({"latent": (mla.kv_lora_rank + mla.qk_rope_head_dim,)})], dtype)
    cache = Cache(spec, PAGES * 3, torch.device(device)).layers[0]
    generator = torch.Generator().manual_seed(1)
    cache.rows["latent"].copy_(torch.randn(cache.rows["latent"].shape, generator=generator))
    return cache


def check_latent(ops, sequences, heads, mla, dtype, device, bound):
    tables = cos_sin(1 / 100.0 ** torch.arange(0, 1, 2 / mla.qk_rope_head_dim), 1.0, torch.arange(192))
    rope_tables = {ROPE: tuple(table.to(device) for table in tables)}
    pages = torch.randperm(PAGES * 3).tolist()
    chunks = [
        Chunk([0] * count, start, [pages[3 * i : 3 * i + -(-(start + count) // 64)]])
        for i, (count, start) in enumerate(sequences)
    ]
    buffers = StepBuffers(256, PAGES, 3, torch.device(device), rope_tables=rope_tables)
    head, latent = mla.qk_nope_head_dim + mla.qk_rope_head_dim, mla.kv_lora_rank + mla.qk_rope_head_dim
    first = torch.randn(sum(count for count, _ in sequences), heads * head + latent).to(device, dtype)
    q, kv = first.split((heads * head, latent), dim=1)
    kv_b = torch.randn(heads * (mla.qk_nope_head_dim + mla.v_head_dim), mla.kv_lora_rank) * mla.kv_lora_rank**-0.5
    weights = {"kv_b": kv_b.to(device, dtype), "kv_norm": (torch.rand(mla.kv_lora_rank) + 0.5).to(device, dtype)}
    ours, theirs = (latent_cache(mla, dtype, device) for _ in range(2))
    inputs = q, kv, weights, mla, Attention(head**-0.5)
    out = ops.latent_attend(*inputs, ours, buffers.fill(chunks))
    expected = TorchOps().latent_attend(*inputs, theirs, buffers.fill(chunks))
    torch.testing.assert_close(out, expected, atol=bound, rtol=bound)
    torch.testing.assert_close(ours.rows["latent"], theirs.rows["latent"], atol=bound, rtol=bound)


@pytest.mark.parametrize("sequences", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize(("value", "deterministic"), [(10, False), (20, False), (24, False), (20, True)])
def test_latent_attention_equals_the_torch_backend(ops, sequences, value, deterministic, device):
    ops.deterministic = deterministic
    check_latent(ops, sequences, 3, Mla(None, 24, 12, 8, value, True), torch.float32, device, 1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("sequences", STEPS.values(), ids=STEPS)
def test_latent_attention_at_size(ops, sequences):
    check_latent(ops, sequences, 16, Mla(None, 512, 128, 64, 128, True), torch.bfloat16, "cuda", 4e-2)


def test_a_product_is_added_to_the_residual_in_place(ops, device):
    residual, x, weight = (torch.randn(shape, device=device) for shape in ((20, 8), (20, 16), (8, 16)))
    expected = residual + x @ weight.T
    assert ops.add_linear(residual, x, {"out": weight}, "out") is residual
    torch.testing.assert_close(residual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["int8", "int4:asym", "fp8"])
def test_so_is_a_product_of_many_tokens_with_packed_weights(ops, name, device):
    residual, x, weight = (torch.randn(shape, device=device) for shape in ((130, 128), (130, 256), (128, 256)))
    packed = parse_format(name).quantize(weight)
    expected = residual.double() + x.double() @ packed.dequantize(torch.float32).double().T
    assert ops.add_linear(residual, x, {"out": packed}, "out") is residual
    assert (residual.double() - expected).norm() < 1e-6 * expected.norm()
    mixed = Mixed((packed, packed))
    assert ops.add_linear(torch.zeros(130, 256, device=device), x, {"out": mixed}, "out").shape == (130, 256)


@pytest.mark.parametrize("tokens", [9, 16, 64, 65])
@pytest.mark.parametrize("name", ["int8", "int4", "int4:asym", "fp8"])
def test_a_gated_mlp_of_several_tokens_equals_the_torch_backend(ops, name, tokens, device):
    dim, ffn = (256, 448) if device == "cpu" else (512, 1408)
    dtype = torch.float16 if device == "cpu" else torch.bfloat16  # which Triton's interpreter does not multiply

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=dtype)

    weights = {"norm": draw(dim), "down.bias": draw(dim)}
    for key, shape in {"gate_up": (2 * ffn, dim), "down": (dim, ffn)}.items():
        weights[key] = parse_format(name).quantize(draw(*shape) * shape[1] ** -0.5)
    x = draw(tokens, dim)
    expected = TorchOps().add_gated_mlp(x.clone(), weights, "norm", 1e-5)
    error = (ops.add_gated_mlp(x.clone(), weights, "norm", 1e-5) - expected).float().norm() / expected.float().norm()
    assert error < 1e-2


def blocks(name: str, rows: int, device: str):
    return repack(random_weights(QUANTIZED[name], rows, 256, rows).to(device), QUANTIZED[name])


@pytest.mark.parametrize("name", ["int8", "fp8", "Q4_K", "Q6_K"])
def test_an_output_head_is_dequantized_in_pieces(ops, name, device, monkeypatch):
    from genwright.text.ops import triton_products

    if name in QUANTIZED:
        weight = blocks(name, 300, device)
    else:
        weight = parse_format(name).quantize(torch.randn(300, 256, device=device))
    x, sizes, unpacked = torch.randn(130, 256, device=device), [], triton_products._unpacked
    monkeypatch.setattr(triton_products, "MAX_UNPACKED", 128 * 256)
    monkeypatch.setattr(triton_products, "_unpacked", lambda *args: sizes.append(args[0].shape) or unpacked(*args))
    ours, theirs = (each.linear(x, {"head": weight}, "head") for each in (ops, TorchOps()))
    assert (ours - theirs).norm() < 1e-6 * theirs.norm()
    assert sizes == [(128, 256), (128, 256), (44, 256)]


@pytest.mark.parametrize("tokens", [1, 2, 8, 64, 130])
def test_a_fused_weight_of_several_types(ops, tokens, device):
    """As q, k and v of Q4_K_M files: with the norm for few tokens, unpacked in registers, and unpacked before."""
    parts = blocks("Q4_K", 40, device), blocks("Q6_K", 24, device), blocks("Q8_0", 9, device)
    x, norm, bias = (torch.randn(shape, device=device) for shape in ((tokens, 256), (256,), (73,)))
    weights = {"qkv": Mixed(parts), "qkv.bias": bias, "norm": norm}
    ours, theirs = (each.norm_linear(x, weights, "norm", "qkv", 1e-5) for each in (ops, TorchOps()))
    assert (ours - theirs).norm() < 3e-4 * theirs.norm()


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q4_0", "Q8_0"])
def test_rows_of_a_packed_embedding(ops, name, device):
    table = PackedTable(blocks(name, 50, device), torch.float16)
    rows = torch.tensor([49, 0, 3, 3, 17], device=device)
    weights = {"embed": table}
    assert torch.equal(ops.embedding(rows, weights, "embed"), table.dequantize(torch.float16)[rows])


def test_rows_of_a_packed_embedding_in_another_format(ops, device):
    table = PackedTable(parse_format("int4:g64:asym").quantize(torch.randn(50, 128, device=device)), torch.float32)
    rows = torch.tensor([49, 0, 3], device=device)
    assert torch.equal(ops.look_up(rows, table), table.look_up(rows))
