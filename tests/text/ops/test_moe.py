"""Routing and experts against loops over tokens; decoding never waits for the host."""

import sys

import pytest
import torch
from torch.nn.functional import linear, silu

from genwright.quant.fp8 import quantize
from genwright.text.architectures.registry import named_shape, read_config
from genwright.text.config import Moe
from genwright.text.ops import moe as layer
from genwright.text.ops.moe import route, run_experts
from genwright.text.ops.torch_ops import TorchOps

EXPERTS, DIM, FFN = 12, 32, 48


def config(**changes) -> Moe:
    usual = {"layers": (True,), "experts": EXPERTS, "top_k": 3, "ffn_dim": FFN, "shared_dim": 0, "shared_gate": False}
    usual |= {"scores": "softmax", "groups": 1, "top_groups": 1, "correction_bias": False, "normalise": False}
    return Moe(**{**usual, "scale": 1.0, **changes})


ROUTING = {
    "Mixtral": {"normalise": True},
    "Qwen2": {},
    "DeepSeek-V2": {"groups": 4, "top_groups": 2, "scale": 16.0},
    "DeepSeek-V3": {"groups": 4, "top_groups": 2, "scores": "sigmoid", "normalise": True, "scale": 2.5},
}


@pytest.mark.parametrize("name", ROUTING)
def test_routing_by_definition(name):
    moe, bias = config(**ROUTING[name]), torch.randn(EXPERTS) if name == "DeepSeek-V3" else None
    logits = torch.randn(50, EXPERTS) * 2
    shares, ids = route(logits, bias, moe)
    for row, got, chosen in zip(logits.double(), shares, ids, strict=True):
        scores = row.softmax(0) if moe.scores == "softmax" else 1 / (1 + (-row).exp())
        wanted = {expert: scores[expert] + (0 if bias is None else bias[expert]) for expert in range(EXPERTS)}
        size = EXPERTS // moe.groups
        groups = [sorted((wanted[g * size + i] for i in range(size)), reverse=True) for g in range(moe.groups)]
        value = [sum(group[: 1 if bias is None else 2]) for group in groups]
        open_groups = sorted(range(moe.groups), key=lambda g: -value[g])[: moe.top_groups]
        best = sorted((e for e in wanted if e // size in open_groups), key=lambda e: -wanted[e])[: moe.top_k]
        assert set(chosen.tolist()) == set(best)
        total = scores[chosen].sum() if moe.normalise else 1.0
        torch.testing.assert_close(got.double(), scores[chosen] / total * moe.scale, rtol=1e-5, atol=1e-7)


def by_definition(x, ids, gate_up, down):
    out = torch.empty(*ids.shape, x.shape[1])
    for token, chosen in enumerate(ids.tolist()):
        for place, expert in enumerate(chosen):
            gate, up = (gate_up[expert] @ x[token]).chunk(2)
            out[token, place] = down[expert] @ (silu(gate) * up)
    return out


@pytest.mark.parametrize("tokens", [1, 2, 7, 65, 200])
@pytest.mark.parametrize("form", ["plain", "packed", "odd"])
def test_experts_by_definition(form, tokens):
    torch.manual_seed(tokens)
    dim, ffn = (128, 128) if form == "packed" else (DIM, FFN if form == "plain" else 30)
    gate_up, down = torch.randn(EXPERTS, 2 * ffn, dim) / 8, torch.randn(EXPERTS, dim, ffn) / 8
    x, ids = torch.randn(tokens, dim), torch.rand(tokens, EXPERTS).topk(3).indices
    if form == "packed":
        packed = [quantize(weight.flatten(0, 1)).unflatten(0, (EXPERTS, -1)) for weight in (gate_up, down)]
        gate_up, down = (weight.dequantize(torch.float32) for weight in packed)
        got = run_experts(x, ids, *packed, TorchOps().product)
        flat = ids.flatten()
        gathered = layer._gathered(x.repeat_interleave(3, 0), *(weight[flat] for weight in packed))  # as on a GPU
        torch.testing.assert_close(gathered.view_as(got), got, rtol=1e-4, atol=1e-5)
    else:
        got = run_experts(x, ids, gate_up, down, linear)
    torch.testing.assert_close(got, by_definition(x, ids, gate_up, down), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("packed", [False, True])
def test_decoding_reads_no_value_back_and_loops_over_no_experts(packed):
    """Tensors on the meta device have no values, so that a host sync, or a loop that depends on one, is an error."""
    calls = []
    with torch.device("meta"):
        gate_up, down = (torch.empty(256, rows, 128, dtype=torch.bfloat16) for rows in (256, 128))
        if packed:
            gate_up, down = (quantize(weight.flatten(0, 1)).unflatten(0, (256, -1)) for weight in (gate_up, down))
        logits, bias = torch.empty(64, 256), torch.empty(256)
        moe = config(experts=256, top_k=8, groups=8, top_groups=4, scores="sigmoid", normalise=True)
        _, ids = route(logits, bias, moe)
        x = torch.empty(64, 128, dtype=torch.bfloat16)
        assert run_experts(x, ids, gate_up, down, lambda x, weight: calls.append(weight)).shape == (64, 8, 128)
    assert not calls


def test_only_steps_that_ask_the_host_for_nothing_become_graphs():
    """Unpacked experts use PyTorch's grouped product for many tokens; latents in a quantized cache ask the host."""
    from genwright.text.ops.triton_moe import MAX_GROUPED_TOKENS
    from genwright.text.ops.triton_ops import TritonOps

    fused, deterministic = object.__new__(TritonOps), object.__new__(TritonOps)
    fused.deterministic, deterministic.deterministic = False, True
    plain = torch.zeros(4, 128, 128)
    packed = quantize(plain.flatten(0, 1)).unflatten(0, (4, -1))
    dense = read_config(named_shape("llama-3.2-1b"), "dense")
    sparse, latent = (read_config(named_shape(name), name) for name in ("mixtral-8x7b", "deepseek-v3"))
    for ops in (fused, deterministic):
        assert ops.max_graph_tokens(dense, [{"qkv": plain}], 8) == sys.maxsize
    for cfg in (sparse, latent):
        assert fused.max_graph_tokens(cfg, [{"qkv": plain}, {"experts.gate_up": plain}], None) == MAX_GROUPED_TOKENS
        assert fused.max_graph_tokens(cfg, [{"experts.gate_up": packed}], None) == sys.maxsize
        assert deterministic.max_graph_tokens(cfg, [{"experts.gate_up": plain}], None) == sys.maxsize
    for ops in (fused, deterministic):
        assert ops.max_graph_tokens(latent, [{"experts.gate_up": packed}], 8) == 0
