"""Deterministic mode, op by op: each token gets the same bits alone, in a batch, in another batch and in chunks.

Every op of the protocol has its cases here, for every backend; an op without one fails the first test.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from text.ops.test_moe import ROUTING, config

from genwright.quant.formats import parse_format
from genwright.text.cache.layout import Cache, CacheSpec, LayerSpec
from genwright.text.config import Attention, Mla
from genwright.text.ops.cpu_ops import CpuOps
from genwright.text.ops.protocol import Ops
from genwright.text.ops.rope import cos_sin
from genwright.text.ops.step import Chunk, StepBuffers
from genwright.text.ops.torch_ops import TorchOps

DIM, FFN, VOCAB, EXPERTS, TOKENS, EPS = 128, 192, 50, 12, 211, 1e-5
HEADS, KV_HEADS, HEAD = 4, 2, 64
MLA = Mla(None, 32, 32, 16, 24, True)
ROOM = 4  # pages of a sequence
LENGTHS = (90, 1, 64, 150, 33)  # of sequences; the first is compared
Weights = dict[str, Any]
BACKENDS = ["torch", "cpu", pytest.param("triton", marks=pytest.mark.gpu)]


def without(weights: Weights, name: str) -> Weights:
    return {key: value for key, value in weights.items() if key != name}


def moe_call(changes: dict[str, Any], shared: dict[str, Any]) -> Callable[..., torch.Tensor]:
    moe = config(**changes, ffn_dim=64, experts=EXPERTS, **shared)

    def call(ops: Ops, w: Weights, x: torch.Tensor, wide: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        weights = w if moe.scores == "sigmoid" else without(w, "router.correction")
        return ops.add_moe(x, weights, "norm", EPS, moe)

    return call


# Of each op: calls with x [tokens, DIM], wide [tokens, FFN] and ids [tokens].
ROW_OPS: dict[str, list[Callable[..., torch.Tensor]]] = {
    "embedding": [lambda ops, w, x, wide, ids: ops.embedding(ids, w, "embed")],
    "norm": [lambda ops, w, x, wide, ids: ops.norm(x, w, "norm", EPS)],
    "layer_norm": [
        lambda ops, w, x, wide, ids: ops.layer_norm(x, w, "norm", EPS),
        lambda ops, w, x, wide, ids: ops.layer_norm(x, {}, "norm", EPS),
    ],
    "linear": [
        lambda ops, w, x, wide, ids: ops.linear(x, w, "up"),
        lambda ops, w, x, wide, ids: ops.linear(wide, w, "down"),
    ],
    "norm_linear": [lambda ops, w, x, wide, ids: ops.norm_linear(x, w, "norm", "up", EPS)],
    "add_linear": [
        lambda ops, w, x, wide, ids: ops.add_linear(x, wide, w, "down"),
        lambda ops, w, x, wide, ids: ops.add_linear(x, wide, w, "biased"),
        lambda ops, w, x, wide, ids: ops.add_linear(x, wide, w, "down", "norm", EPS),
    ],
    "add_gated_mlp": [
        lambda ops, w, x, wide, ids: ops.add_gated_mlp(x, w, "norm", EPS),
        lambda ops, w, x, wide, ids: ops.add_gated_mlp(x, w, "norm", EPS, "gelu_tanh", "norm"),
    ],
    "add_mlp": [
        lambda ops, w, x, wide, ids: ops.add_mlp(x, x, w, "relu"),
        lambda ops, w, x, wide, ids: ops.add_mlp(x, x, w, "gelu"),
    ],
    "add_moe": [
        moe_call(changes, shared)
        for changes, shared in zip(ROUTING.values(), [{}, {"shared_dim": FFN, "shared_gate": True}] * 2, strict=True)
    ],
}
_ATTENTION = Attention(HEAD**-0.5, norm_eps=EPS)
_WINDOW = Attention(HEAD**-0.5, window=24, rope="global", norm_eps=EPS)
_LEARNED = Attention(HEAD**-0.5, rope=None)
_KV = {"k": (KV_HEADS, HEAD), "v": (KV_HEADS, HEAD)}
_LATENT = {"latent": (MLA.kv_lora_rank + MLA.qk_rope_head_dim,)}
# Of each op: calls with projections [tokens, (HEADS + 2 KV_HEADS) HEAD], what the cache holds, and in how many bits.
ATTENTION_OPS: dict[str, list[tuple[Callable[..., torch.Tensor], Any, int | None]]] = {
    "rope_attend": [
        (lambda ops, w, p, cache, step: ops.rope_attend(p, w, _ATTENTION, cache, step), _KV, None),
        (lambda ops, w, p, cache, step: ops.rope_attend(p, w, _WINDOW, cache, step), _KV, None),
        (lambda ops, w, p, cache, step: ops.rope_attend(p, without(w, "q_norm"), _WINDOW, cache, step), _KV, None),
        (lambda ops, w, p, cache, step: ops.rope_attend(p, without(w, "q_norm"), _LEARNED, cache, step), _KV, None),
        (lambda ops, w, p, cache, step: ops.rope_attend(p, w, _ATTENTION, cache, step), _KV, 8),
        (lambda ops, w, p, cache, step: ops.rope_attend(p, w, _ATTENTION, cache, step), _KV, 4),
    ],
    "latent_attend": [
        (
            lambda ops, w, p, cache, step: ops.latent_attend(
                p[:, : HEADS * 48], p[:, HEADS * 48 :][:, :48], w, MLA, Attention(48**-0.5), cache, step
            ),
            _LATENT,
            bits,
        )
        for bits in (None, 8)
    ],
}


def ops_of(protocol: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(protocol, inspect.isfunction) if not name.startswith("_")}


def untested(protocol: type) -> set[str]:
    return ops_of(protocol) - ROW_OPS.keys() - ATTENTION_OPS.keys()


def backend(name: str) -> Ops:
    if name == "triton":
        from genwright.text.ops.triton_ops import TritonOps

        return TritonOps(torch.device("cuda"), deterministic=True)
    return {"torch": TorchOps, "cpu": CpuOps}[name](deterministic=True)


def make_weights(dtype: torch.dtype, device: str, quant: str | None) -> Weights:
    generator = torch.Generator().manual_seed(1)

    def matrix(*shape: int) -> Any:
        plain = torch.randn(shape, generator=generator).to(device, dtype) * 0.2
        return plain if quant is None else parse_format(quant).quantize(plain)

    def vector(size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator).to(device, dtype)

    weights = {"up": matrix(FFN, DIM), "down": matrix(DIM, FFN), "biased": matrix(DIM, FFN)}
    weights |= {"gate_up": matrix(2 * FFN, DIM), "fc1": matrix(FFN, DIM), "fc2": matrix(DIM, FFN)}
    weights |= {"experts.gate_up": matrix(EXPERTS * 128, DIM), "experts.down": matrix(EXPERTS * DIM, 64)}
    weights |= {"shared.gate_up": matrix(2 * FFN, DIM), "shared.down": matrix(DIM, FFN)}
    weights |= {"up.bias": vector(FFN), "biased.bias": vector(DIM), "fc1.bias": vector(FFN), "fc2.bias": vector(DIM)}
    weights |= {"norm": vector(DIM), "norm.bias": vector(DIM), "q_norm": vector(HEAD), "k_norm": vector(HEAD)}
    weights |= {"kv_norm": vector(MLA.kv_lora_rank), "router.correction": vector(EXPERTS).float() * 0.01}
    weights |= {"router": torch.randn(EXPERTS, DIM, generator=generator).to(device) * 0.2}
    weights |= {"shared.gate": torch.randn(1, DIM, generator=generator).to(device, dtype)}
    weights |= {"embed": torch.randn(VOCAB, DIM, generator=generator).to(device, dtype)}
    weights |= {"kv_b": torch.randn(HEADS * 56, MLA.kv_lora_rank, generator=generator).to(device, dtype)}
    return weights


def check_rows(ops: Ops, name: str, dtype: torch.dtype, device: str, quant: str | None = None) -> None:
    generator, weights = torch.Generator().manual_seed(2), make_weights(dtype, device, quant)
    x, wide = (torch.randn(TOKENS, size, generator=generator).to(device, dtype) for size in (DIM, FFN))
    ids = torch.randint(VOCAB, (TOKENS,), generator=generator).to(device)
    for number, call in enumerate(ROW_OPS[name]):
        whole = call(ops, weights, x, wide, ids)
        assert not whole.isnan().any()
        for first, count in ((0, 1), (TOKENS - 1, 1), (7, 2), (3, 16), (5, 33), (40, 130)):
            rows = slice(first, first + count)
            part = call(ops, weights, x[rows], wide[rows], ids[rows])
            assert torch.equal(part, whole[rows]), f"{name}, call {number}: tokens {first} to {rows.stop} by themselves"


def attention_ways() -> Iterator[tuple[str, int, list[int], int]]:
    """How the first sequence is read: tokens at a time, the others beside it, and its place among them."""
    yield from ((f"alone, in chunks of {chunk}", chunk, [], 0) for chunk in (17, 64))
    yield "first of five", 90, [1, 2, 3, 4], 0
    yield "last of five, in chunks of 64", 64, [1, 2, 3, 4], 4
    yield "token by token beside another", 1, [1], 1


def check_attention(ops: Ops, name: str, dtype: torch.dtype, device: str) -> None:
    where, generator, weights = (
        torch.device(device),
        torch.Generator().manual_seed(3),
        make_weights(dtype, device, None),
    )
    width = (HEADS + 2 * KV_HEADS) * HEAD
    given = [torch.randn(length, width, generator=generator).to(device, dtype) for length in LENGTHS]
    latent = name == "latent_attend"
    angles = 1 / 100.0 ** torch.arange(0, 1, 2 / (MLA.qk_rope_head_dim if latent else HEAD))
    rope = {"global": tuple(t.to(device) for t in cos_sin(angles, 1.0, torch.arange(ROOM * 64)))}
    for number, (call, rows, bits) in enumerate(ATTENTION_OPS[name]):

        def read(chunk: int, others: list[int], place: int, call=call, rows=rows, bits=bits) -> torch.Tensor:
            cache = Cache(CacheSpec([LayerSpec(rows)], dtype, bits), len(LENGTHS) * ROOM, where)
            buffers = StepBuffers(600, len(LENGTHS), ROOM, where, rope_tables=rope)
            found = []
            for start in range(0, LENGTHS[0], chunk):
                parts = [(other, 0, LENGTHS[other]) for other in others]
                parts.insert(place, (0, start, min(start + chunk, LENGTHS[0])))
                pages = [[list(range(lane * ROOM, (lane + 1) * ROOM))] for lane, *_ in parts]
                spans = zip(parts, pages, strict=True)
                chunks = [Chunk([0] * (end - first), first, table) for (_, first, end), table in spans]
                projections = torch.cat([given[lane][first:end] for lane, first, end in parts])
                out = call(ops, weights, projections, cache.layers[0], buffers.fill(chunks))
                before = sum(end - first for _, first, end in parts[:place])
                found.append(out[before : before + parts[place][2] - start])
            return torch.cat(found)

        whole = read(LENGTHS[0], [], 0)
        assert not whole.isnan().any()
        for words, *way in attention_ways():
            assert torch.equal(read(*way), whole), f"{name}, call {number}: {words}"


def check(ops: Ops, name: str, dtype: torch.dtype, device: str) -> None:
    if name in ATTENTION_OPS:
        check_attention(ops, name, dtype, device)
    else:
        for quant in (None, "int8", "int4:g32") if name != "embedding" else (None,):
            check_rows(ops, name, dtype, device, quant)


def test_every_op_of_the_protocol_has_a_bitwise_test() -> None:
    assert not untested(Ops)
    assert ROW_OPS.keys() | ATTENTION_OPS.keys() == ops_of(Ops), "a case of an op that is gone"

    class WithOneMore(Ops):
        def fused_something(self, x: torch.Tensor) -> torch.Tensor: ...

    assert untested(WithOneMore) == {"fused_something"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", sorted(ops_of(Ops)))
@pytest.mark.parametrize("which", BACKENDS)
def test_an_op_gives_each_token_the_same_bits(which: str, name: str, dtype: torch.dtype) -> None:
    check(backend(which), name, dtype, "cuda" if which == "triton" else "cpu")


class Careless(CpuOps):
    """Simulates new fused ops that ignore deterministic mode."""

    def fused_linear(self, x: torch.Tensor, weight: Any, **epilogue: Any) -> torch.Tensor | None:
        return CpuOps().fused_linear(x, weight, **epilogue)

    def add_mlp(self, residual: torch.Tensor, x: torch.Tensor, weights: Any, activation: str) -> torch.Tensor:
        return CpuOps().add_mlp(residual, x, weights, activation)

    def add_moe(self, *args: Any) -> torch.Tensor:
        return CpuOps().add_moe(*args)

    def attend(self, *args: Any) -> torch.Tensor:
        return CpuOps().attend(*args)


@pytest.mark.parametrize("name", ["norm_linear", "add_gated_mlp", "add_mlp", "add_moe", "rope_attend"])
def test_an_op_without_a_deterministic_form_is_found(name: str) -> None:
    with pytest.raises(AssertionError, match=r"by themselves|in chunks|of five|beside another"):
        check(Careless(deterministic=True), name, torch.float32, "cpu")
