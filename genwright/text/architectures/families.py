"""How each family's `config.json` says what a ModelConfig holds."""

from collections.abc import Callable, Mapping
from typing import Any

from genwright.errors import UserError
from genwright.text.architectures.rope_config import read_rope
from genwright.text.config import ARCHITECTURES, MODEL_TYPES, Mla, ModelConfig, Moe, Opt, Rope
from genwright.text.config_file import FieldReader, short


def read_config(config: Mapping[str, Any], where: str) -> ModelConfig:
    """The configuration of any known family; `where` names it in errors."""
    read = FieldReader(config, where)
    family = _family(read)
    _check_quantization(read)
    readers: dict[str, Callable[..., ModelConfig]] = {"llama": _llama, "opt": _opt, "deepseek": _deepseek}
    return readers[ARCHITECTURES[family]](read, family, _sizes(read))


def _sizes(read: FieldReader) -> dict[str, Any]:
    """What every family calls by the same names."""
    return {
        "vocab_size": read.integer("vocab_size", 1, 1 << 24),
        "dim": read.integer("hidden_size", 1, 1 << 20),
        "layers": read.integer("num_hidden_layers", 1, 4096),
        "heads": read.integer("num_attention_heads", 1, 4096),
        "max_context": read.integer("max_position_embeddings", 1, 1 << 30, default=2048),
        "eos_ids": read.ids("eos_token_id"),
        "dtype": _dtype(read),
    }


def _llama(read: FieldReader, family: str, sizes: dict[str, Any]) -> ModelConfig:
    dim, heads, layers = sizes["dim"], sizes["heads"], sizes["layers"]
    if read.config.get("head_dim") is None and dim % heads:
        raise UserError(f"{read.where} has a hidden_size of {dim}, which {heads} heads cannot divide.")
    head_dim = read.integer("head_dim", 1, 4096, default=dim // heads)
    kv_heads = read.integer("num_key_value_heads", 1, 4096, default=heads)
    if heads % kv_heads:
        raise read.wrong("num_key_value_heads", f"a divisor of the {heads} attention heads")
    _check_silu(read)
    qwen2 = family in ("Qwen2ForCausalLM", "Qwen2MoeForCausalLM")
    attention_bias = read.flag("attention_bias", False)
    return ModelConfig(
        architecture="llama",
        **sizes,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_dim=read.integer("intermediate_size", 1, 1 << 22),
        norm_eps=read.number("rms_norm_eps", 1e-6),
        rope=read_rope(read, head_dim),
        tied=read.flag("tie_word_embeddings", False),
        qkv_bias=attention_bias or (qwen2 and read.flag("qkv_bias", True)),
        out_bias=attention_bias and not qwen2,
        mlp_bias=read.flag("mlp_bias", False),
        qk_norm=family in ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM"),
        windows=_windows(read, family, layers),
        moe=_llama_experts(read, family, layers),
    )


def _llama_experts(read: FieldReader, family: str, layers: int) -> Moe | None:
    """Mixtral's and Qwen's mixtures: softmax scores without groups."""
    if family not in ("MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"):
        return None
    mixtral, qwen2 = family == "MixtralForCausalLM", family == "Qwen2MoeForCausalLM"
    key = "num_experts" if read.config.get("num_experts") is not None else "num_local_experts"
    experts = read.integer(key, 1, 4096)
    every = read.integer("decoder_sparse_step", 1, 4096, default=1)
    dense = read.ids("mlp_only_layers")
    return Moe(
        layers=tuple(layer not in dense and (layer + 1) % every == 0 for layer in range(layers)),
        experts=experts,
        top_k=read.integer("num_experts_per_tok", 1, experts),
        ffn_dim=read.integer("intermediate_size" if mixtral else "moe_intermediate_size", 1, 1 << 22),
        shared_dim=read.integer("shared_expert_intermediate_size", 1, 1 << 22) if qwen2 else 0,
        shared_gate=qwen2,
        scores="softmax",
        groups=1,
        top_groups=1,
        correction_bias=False,
        normalise=mixtral or read.flag("norm_topk_prob", False),
        scale=1.0,
        mixtral_names=mixtral,
    )


def _deepseek(read: FieldReader, family: str, sizes: dict[str, Any]) -> ModelConfig:
    layers, heads = sizes["layers"], sizes["heads"]
    if read.flag("attention_bias", False) or read.flag("mlp_bias", False):
        raise UserError(f"{read.where} asks for biases, which no published model of the architecture {family} has.")
    _check_silu(read)
    q_rank = read.integer("q_lora_rank", 0, 1 << 20, default=0)  # 0 in DeepSeek's own files, null in Hugging Face's
    mla = Mla(
        q_lora_rank=q_rank or None,
        kv_lora_rank=read.integer("kv_lora_rank", 1, 1 << 20),
        qk_nope_head_dim=read.integer("qk_nope_head_dim", 1, 1 << 16),
        qk_rope_head_dim=read.integer("qk_rope_head_dim", 2, 1 << 16),
        v_head_dim=read.integer("v_head_dim", 1, 1 << 16),
        rope_interleave=read.flag("rope_interleave", True),
    )
    return ModelConfig(
        architecture="deepseek",
        **sizes,
        kv_heads=heads,
        head_dim=mla.qk_nope_head_dim + mla.qk_rope_head_dim,
        ffn_dim=read.integer("intermediate_size", 1, 1 << 22),
        norm_eps=read.number("rms_norm_eps", 1e-6),
        rope=read_rope(read, mla.qk_rope_head_dim),
        tied=read.flag("tie_word_embeddings", False),
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        qk_norm=False,
        windows=(None,) * layers,
        moe=_deepseek_experts(read, family == "DeepseekV3ForCausalLM", layers),
        mla=mla,
        draft_layers=read.integer("num_nextn_predict_layers", 0, 16, default=0),
    )


def _deepseek_experts(read: FieldReader, v3: bool, layers: int) -> Moe:
    """V2 scores by softmax, groups by their best expert; V3 by sigmoid and a bias, groups by their best two."""
    scores = read.text("scoring_func", "sigmoid" if v3 else "softmax")
    if scores != ("sigmoid" if v3 else "softmax"):
        raise read.wrong("scoring_func", f"{'sigmoid' if v3 else 'softmax'}, which this architecture has")
    method = read.text("topk_method", "noaux_tc" if v3 else "greedy")
    known = ("noaux_tc",) if v3 else ("greedy", "group_limited_greedy")
    if method not in known:
        raise read.wrong("topk_method", " or ".join(known))
    experts = read.integer("n_routed_experts", 1, 4096)
    groups = 1 if method == "greedy" else read.integer("n_group", 1, experts, default=1)
    top_groups = 1 if method == "greedy" else read.integer("topk_group", 1, groups, default=1)
    smallest = 2 if v3 and groups > 1 else 1
    if experts % groups or experts // groups < smallest:
        raise read.wrong("n_group", f"a number of equal groups of the {experts} experts")
    first = read.integer("first_k_dense_replace", 0, 4096, default=0)
    every = read.integer("moe_layer_freq", 1, 4096, default=1)
    ffn_dim = read.integer("moe_intermediate_size", 1, 1 << 22)
    return Moe(
        layers=tuple(layer >= first and layer % every == 0 for layer in range(layers)),
        experts=experts,
        top_k=read.integer("num_experts_per_tok", 1, experts // groups * top_groups),
        ffn_dim=ffn_dim,
        shared_dim=ffn_dim * read.integer("n_shared_experts", 0, 4096, default=0),
        shared_gate=False,
        scores=scores,
        groups=groups,
        top_groups=top_groups,
        correction_bias=v3,
        normalise=read.flag("norm_topk_prob", v3),
        scale=read.number("routed_scaling_factor", 1.0),
    )


def _opt(read: FieldReader, family: str, sizes: dict[str, Any]) -> ModelConfig:
    dim, heads = sizes["dim"], sizes["heads"]
    if dim % heads:
        raise UserError(f"{read.where} has a hidden_size of {dim}, which {heads} heads cannot divide.")
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
        qk_norm=False,
        windows=(None,) * sizes["layers"],
        opt=Opt(
            embed_dim=read.integer("word_embed_proj_dim", 1, 1 << 20, default=dim),
            activation=activation,
            pre_norm=pre_norm,
            final_norm=pre_norm and not read.flag("_remove_final_layer_norm", False),
            affine=read.flag("layer_norm_elementwise_affine", True),
        ),
    )


def _family(read: FieldReader) -> str:
    """The Hugging Face class that a configuration names, by `architectures` or by `model_type`."""
    named = read.config.get("architectures") or [MODEL_TYPES.get(read.text("model_type", ""), "")]
    name = named[0] if isinstance(named, list) and named else named
    if not isinstance(name, str) or name not in ARCHITECTURES:
        what = short(name or read.config.get("model_type"))
        raise UserError(f"{read.where} names the architecture {what}; known are {', '.join(ARCHITECTURES)}.")
    return name


def _windows(read: FieldReader, family: str, layers: int) -> tuple[int | None, ...]:
    """Mistral and Mixtral slide everywhere; Qwen when `use_sliding_window`, and only in the layers that say so."""
    full: tuple[int | None, ...] = (None,) * layers
    always = family in ("MistralForCausalLM", "MixtralForCausalLM")
    sliding = always or read.flag("use_sliding_window", False)
    if family == "LlamaForCausalLM" or not sliding or read.config.get("sliding_window") is None:
        return full
    window = read.integer("sliding_window", 1, 1 << 30)
    kinds = read.config.get("layer_types")
    if kinds is None:
        first = 0 if always else read.integer("max_window_layers", 0, 4096, default=0)
        return tuple(window if layer >= first else None for layer in range(layers))
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in known for kind in kinds):
        raise read.wrong("layer_types", "full_attention or sliding_attention for each layer")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _dtype(read: FieldReader) -> str:
    name = read.text("dtype", read.text("torch_dtype", "float32"))
    if name not in ("float32", "float16", "bfloat16"):
        raise read.wrong("dtype" if "dtype" in read.config else "torch_dtype", "float32, float16 or bfloat16")
    return name


def _check_silu(read: FieldReader) -> None:
    if read.text("hidden_act", "silu") not in ("silu", "swish"):
        activation = short(read.config["hidden_act"])
        raise UserError(f"{read.where} asks for the activation {activation}; this architecture has silu.")


def _check_quantization(read: FieldReader) -> None:
    """Of quantized Hugging Face checkpoints those in FP8 blocks of 128 x 128 are read, and our own."""
    quantization = read.table("quantization_config")
    if not quantization.config or quantization.config.get("quant_method") == "genwright":
        return
    if quantization.config.get("quant_method") != "fp8":
        raise quantization.wrong("quant_method", "fp8, the one quantized format that is read")
    if quantization.config.get("weight_block_size") != [128, 128]:
        raise quantization.wrong("weight_block_size", "[128, 128], the one block size that is read")
