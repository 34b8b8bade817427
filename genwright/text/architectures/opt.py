"""OPT (Zhang et al., 2022), OPT-IML and Galactica: learned positions, LayerNorm, biases, a two-matrix MLP."""

from collections.abc import Mapping
from typing import Any

import torch

from genwright.errors import UserError
from genwright.text.architectures import llama
from genwright.text.architectures.protocol import Gguf
from genwright.text.architectures.weight_map import Source, Sources, WeightMap, vocabulary
from genwright.text.cache.layout import LayerCache
from genwright.text.config import ModelConfig, Opt, Rope
from genwright.text.config_file import FieldReader
from genwright.text.ops.protocol import Ops, Weights
from genwright.text.ops.step import Step

CLASSES = {"opt": "OPTForCausalLM"}
GGUF: dict[str, Gguf] = {}
POSITION_OFFSET = 2  # the table has two unused rows before position 0


def embed(ops: Ops, cfg: ModelConfig, weights: Weights, step: Step) -> torch.Tensor:
    x = ops.embedding(step.tokens, weights, "embed")
    if "project_in" in weights:
        x = ops.linear(x, weights, "project_in")
    return x + ops.embedding(step.positions + POSITION_OFFSET, weights, "positions")


def block(ops: Ops, cfg: ModelConfig, weights: Weights, cache: LayerCache, x: torch.Tensor, step: Step) -> torch.Tensor:
    """One layer: x [tokens, dim]. Norms precede the sublayers; in 350m they follow the sums."""
    assert cfg.opt is not None
    pre, eps = cfg.opt.pre_norm, cfg.norm_eps
    qkv = ops.linear(ops.layer_norm(x, weights, "attention_norm", eps) if pre else x, weights, "qkv")
    attended = ops.rope_attend(qkv, weights, cfg.attention[cache.layer], cache, step)
    x, attended = step.needed(cache.layer, x, attended)
    x = ops.add_linear(x, attended, weights, "out")
    x = x if pre else ops.layer_norm(x, weights, "attention_norm", eps)
    normed = ops.layer_norm(x, weights, "mlp_norm", eps) if pre else x
    x = ops.add_mlp(x, normed, weights, cfg.opt.activation)
    return x if pre else ops.layer_norm(x, weights, "mlp_norm", eps)


def final_norm(ops: Ops, cfg: ModelConfig, weights: Weights, x: torch.Tensor) -> torch.Tensor:
    """The hidden states [tokens, dim] that the head's matrix multiplies."""
    assert cfg.opt is not None
    if cfg.opt.final_norm:
        x = ops.layer_norm(x, weights, "norm", cfg.norm_eps)
    return ops.linear(x, weights, "project_out") if "project_out" in weights else x


def head(ops: Ops, cfg: ModelConfig, weights: Weights, x: torch.Tensor, step: Step) -> torch.Tensor:
    """Logits [rows, vocab] of `step.logit_rows`."""
    return ops.linear(final_norm(ops, cfg, weights, step.wanted(x)), weights, "head")


cache_layers = llama.cache_layers


def weight_map(cfg: ModelConfig) -> WeightMap:
    assert cfg.opt is not None
    d, e, ffn, heads = cfg.dim, cfg.opt.embed_dim, cfg.ffn_dim, cfg.head_dim
    layer: dict[str, Sources] = {
        "qkv": [Source(f"self_attn.{name}_proj.weight", (d, d), 0, heads) for name in "qkv"],
        "out": [Source("self_attn.out_proj.weight", (d, d), 1, heads)],
        "fc1": [Source("fc1.weight", (ffn, d), 0)],
        "fc2": [Source("fc2.weight", (d, ffn), 1)],
    }
    outer: dict[str, Sources] = {
        "embed": [vocabulary("model.decoder.embed_tokens.weight", cfg.vocab_size, e)],
        "positions": [Source("model.decoder.embed_positions.weight", (cfg.max_context + POSITION_OFFSET, d))],
    }
    if cfg.qkv_bias:
        layer |= {
            "qkv.bias": [Source(f"self_attn.{name}_proj.bias", (d,), 0, heads) for name in "qkv"],
            "out.bias": [Source("self_attn.out_proj.bias", (d,))],
            "fc1.bias": [Source("fc1.bias", (ffn,), 0)],
            "fc2.bias": [Source("fc2.bias", (d,))],
        }
    if cfg.opt.affine:
        layer |= _norm("attention_norm", "self_attn_layer_norm", d) | _norm("mlp_norm", "final_layer_norm", d)
        if cfg.opt.final_norm:
            outer |= _norm("norm", "model.decoder.final_layer_norm", d)
    if e != d:
        outer["project_in"] = [Source("model.decoder.project_in.weight", (d, e))]
        outer["project_out"] = [Source("model.decoder.project_out.weight", (e, d))]
    if not cfg.tied:
        outer["head"] = [vocabulary("lm_head.weight", cfg.vocab_size, e)]
    return WeightMap(outer, [layer] * cfg.layers, "model.decoder.layers.{}.")


def _norm(ours: str, theirs: str, d: int) -> dict[str, Sources]:
    return {ours: [Source(f"{theirs}.weight", (d,))], f"{ours}.bias": [Source(f"{theirs}.bias", (d,))]}


def read_config(read: FieldReader, family: str, sizes: Mapping[str, Any]) -> ModelConfig:
    dim, heads = sizes["dim"], sizes["heads"]
    if dim % heads:
        raise UserError(f"{read.where} has a hidden_size of {dim}, which is not a multiple of its {heads} heads.")
    activation = read.text("activation_function", "relu")
    if activation not in ("relu", "gelu"):
        raise read.wrong("activation_function", "relu or gelu")
    bias, pre_norm = read.flag("enable_bias", True), read.flag("do_layer_norm_before", True)
    return ModelConfig(
        architecture="opt",
        **sizes,
        kv_heads=heads,
        head_dim=dim // heads,
        ffn_dim=read.integer("ffn_dim", 1, 1 << 22),
        norm_eps=1e-5,
        rope=Rope(kind="none"),
        tied=read.flag("tie_word_embeddings", True),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        windows=(None,) * sizes["layers"],
        opt=Opt(
            embed_dim=read.integer("word_embed_proj_dim", 1, 1 << 20, default=dim),
            activation=activation,
            pre_norm=pre_norm,
            final_norm=pre_norm and not read.flag("_remove_final_layer_norm", False),
            affine=read.flag("layer_norm_elementwise_affine", True),
        ),
    )


_OPT = {"model_type": "opt", "torch_dtype": "float16", "eos_token_id": 2}
_OPT |= {"vocab_size": 50272, "max_position_embeddings": 2048}
_FIELDS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "ffn_dim")

# name: dim, layers, heads, further fields
_ROWS: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "opt-125m": (768, 12, 12, {}),
    "opt-350m": (1024, 24, 16, {"word_embed_proj_dim": 512, "do_layer_norm_before": False}),
    "opt-1.3b": (2048, 24, 32, {}),
    "opt-2.7b": (2560, 32, 32, {}),
    "opt-6.7b": (4096, 32, 32, {}),
    "opt-13b": (5120, 40, 40, {}),
    "opt-30b": (7168, 48, 56, {}),
    "opt-66b": (9216, 64, 72, {}),
    "opt-175b": (12288, 96, 96, {}),
    "galactica-30b": (7168, 48, 56, {"vocab_size": 50000, "activation_function": "gelu"}),
}
SHAPES = {
    name: {**_OPT, **dict(zip(_FIELDS, (dim, layers, heads, 4 * dim), strict=True)), **more}
    for name, (dim, layers, heads, more) in _ROWS.items()
}
ALIASES = {f"opt-iml-{size}": f"opt-{size.removeprefix('max-')}" for size in ("1.3b", "30b", "max-1.3b", "max-30b")}
