"""ModelConfig: what a text model is, checked once, built from any checkpoint's own configuration."""

import json
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genwright.errors import UserError

# Hugging Face class -> our file in models/. The differences inside the Llama family are the fields of ModelConfig.
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "llama",
    "Qwen3ForCausalLM": "llama",
}
MODEL_TYPES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding: the base, and how its frequencies are stretched for long contexts."""

    theta: float = 10000.0
    kind: str = "default"  # default, linear, llama3, yarn, factors
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer of the Llama family."""

    architecture: str
    vocab_size: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_dim: int
    max_context: int
    norm_eps: float
    rope: Rope
    tied: bool  # the head is the embedding
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    qk_norm: bool
    windows: tuple[int | None, ...]  # per layer: how many tokens back attention reaches, None for all
    eos_ids: tuple[int, ...]
    dtype: str  # of the stored weights: float32, float16 or bfloat16

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], where: str) -> "ModelConfig":
        """Read a Hugging Face `config.json`; `where` names it in errors."""
        read = FieldReader(config, where)
        family = _family(read)
        heads = read.integer("num_attention_heads", 1, 4096)
        dim = read.integer("hidden_size", 1, 1 << 20)
        layers = read.integer("num_hidden_layers", 1, 4096)
        if config.get("head_dim") is None and dim % heads:
            raise UserError(f"{where} has a hidden_size of {dim}, which {heads} heads cannot divide.")
        head_dim = read.integer("head_dim", 1, 4096, default=dim // heads)
        if head_dim % 2:
            raise UserError(f"{where} has heads of {head_dim} channels; rotary embeddings need an even number.")
        kv_heads = read.integer("num_key_value_heads", 1, 4096, default=heads)
        if heads % kv_heads:
            raise read.wrong("num_key_value_heads", f"a divisor of the {heads} attention heads")
        if read.text("hidden_act", "silu") not in ("silu", "swish"):
            raise UserError(f"{where} asks for the activation {config['hidden_act']!r:.60}; this architecture has silu.")
        attention_bias = read.flag("attention_bias", False)
        return cls(
            architecture=ARCHITECTURES[family],
            vocab_size=read.integer("vocab_size", 1, 1 << 24),
            dim=dim,
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            ffn_dim=read.integer("intermediate_size", 1, 1 << 22),
            max_context=read.integer("max_position_embeddings", 1, 1 << 30, default=2048),
            norm_eps=read.number("rms_norm_eps", 1e-6),
            rope=_rope(read, head_dim),
            tied=read.flag("tie_word_embeddings", False),
            qkv_bias=attention_bias or family == "Qwen2ForCausalLM",
            out_bias=attention_bias and family != "Qwen2ForCausalLM",
            mlp_bias=read.flag("mlp_bias", False),
            qk_norm=family == "Qwen3ForCausalLM",
            windows=_windows(read, family, layers),
            eos_ids=read.ids("eos_token_id"),
            dtype=_dtype(read),
        )

    @property
    def q_dim(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        return self.kv_heads * self.head_dim


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or one sentence."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} should hold a JSON object, and holds a {type(value).__name__}.")
    return value


@dataclass
class FieldReader:
    """Reads fields of a configuration that anyone may have written."""

    config: Mapping[str, Any]
    where: str

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self.config.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(key, f"a whole number from {low} to {high}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.config.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-30 < value < 1e30:
            raise self.wrong(key, "a positive number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.config.get(key)
        if not isinstance(value, bool | None):
            raise self.wrong(key, "true or false")
        return default if value is None else value

    def text(self, key: str, default: str) -> str:
        value = self.config.get(key)
        if not isinstance(value, str | None):
            raise self.wrong(key, "a string")
        return default if value is None else value

    def ids(self, key: str) -> tuple[int, ...]:
        value = self.config.get(key)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(item) is int and 0 <= item < 1 << 31 for item in values):
            raise self.wrong(key, "a token id or a list of them")
        return tuple(values)

    def table(self, key: str) -> "FieldReader":
        value = self.config.get(key)
        if not isinstance(value, dict | None):
            raise self.wrong(key, "an object")
        return FieldReader(value or {}, f"{self.where} ({key})")

    def wrong(self, key: str, expected: str) -> UserError:
        return UserError(f"{self.where} should give {key!r} as {expected}, and has {_short(self.config.get(key))}.")


def _short(value: object) -> str:
    """A value of any size and depth, to be shown in a sentence."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    return short.repr(value)


def _family(read: FieldReader) -> str:
    """The Hugging Face class that a configuration names, by `architectures` or by `model_type`."""
    named = read.config.get("architectures") or [MODEL_TYPES.get(read.text("model_type", ""), "")]
    name = named[0] if isinstance(named, list) and named else named
    if not isinstance(name, str) or name not in ARCHITECTURES:
        what = _short(name or read.config.get("model_type"))
        raise UserError(f"{read.where} names the architecture {what}; known are {', '.join(ARCHITECTURES)}.")
    return name


def _rope(read: FieldReader, head_dim: int) -> Rope:
    # transformers 5 writes `rope_parameters`, earlier ones `rope_theta` beside `rope_scaling`.
    new, old = read.table("rope_parameters"), read.table("rope_scaling")
    scaling = new if new.config else old
    base = new if "rope_theta" in new.config else read
    if (theta := base.number("rope_theta", 10000.0)) <= 1:
        raise base.wrong("rope_theta", "a number above 1")
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    required = {
        "default": (),
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
        "yarn": ("factor",),
        "factors": (),
    }
    if kind not in required:
        raise UserError(f"{read.where} asks for RoPE scaling {kind!r:.60}; known are {', '.join(required)}.")
    optional = ("original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor")
    given = [key for key in optional if scaling.config.get(key) is not None]
    settings: dict[str, Any] = {key: scaling.number(key) for key in (*required[kind], *given)}
    if kind == "llama3" and settings["low_freq_factor"] >= settings["high_freq_factor"]:
        raise scaling.wrong("low_freq_factor", "a number below its high_freq_factor")
    if kind == "yarn" and "original_max_position_embeddings" not in settings:
        settings["original_max_position_embeddings"] = _original_context(read)
    if kind == "factors":
        factors = scaling.config.get("factors")
        good = isinstance(factors, list) and all(isinstance(f, float) and 1e-30 < f < 1e30 for f in factors)
        if not good or len(factors) != head_dim // 2:
            raise scaling.wrong("factors", f"{head_dim // 2} positive numbers, one for every two channels of a head")
        settings["factors"] = factors
    return Rope(theta, kind, settings)


def _original_context(read: FieldReader) -> float:
    """The context before it was stretched, where the scaling itself does not say."""
    key = "original_max_position_embeddings"
    return read.number(key if read.config.get(key) is not None else "max_position_embeddings", 2048)


def _windows(read: FieldReader, family: str, layers: int) -> tuple[int | None, ...]:
    """Mistral slides in every layer; Qwen only when `use_sliding_window`, and only in the layers that say so."""
    full: tuple[int | None, ...] = (None,) * layers
    sliding = family == "MistralForCausalLM" or read.flag("use_sliding_window", False)
    if family == "LlamaForCausalLM" or not sliding or read.config.get("sliding_window") is None:
        return full
    window = read.integer("sliding_window", 1, 1 << 30)
    kinds = read.config.get("layer_types")
    if kinds is None:
        first = 0 if family == "MistralForCausalLM" else read.integer("max_window_layers", 0, 4096, default=0)
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
