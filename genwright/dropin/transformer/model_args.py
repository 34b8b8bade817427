"""ModelArgs: gpt-fast's description of a model, and the engine's configuration of the same model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from genwright.errors import UserError
from genwright.text.architectures.registry import read_config
from genwright.text.config import ModelConfig

Configs = Mapping[str, Mapping[str, Any]]
_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_FREE = ("dtype", "eos_ids", "windows", "tied")  # what a module does not read; its head is a tensor of its own


def find_multiple(n: int, k: int) -> int:
    """The smallest multiple of k that is not below n."""
    return n + -n % k


@dataclass
class ModelArgs:
    """Llama's fields, and Mixtral's, which a model without experts leaves at None."""

    block_size: int = 2048
    vocab_size: int = 32000
    n_layer: int = 32
    n_head: int = 32
    dim: int = 4096
    intermediate_size: int | None = None
    n_local_heads: int = -1
    head_dim: int = 64
    rope_base: float = 10000
    norm_eps: float = 1e-5
    rope_scaling: dict[str, float] | None = None
    num_experts: int | None = None
    num_activated_experts: int | None = None

    configs: ClassVar[Configs] = {}  # the shapes that `from_name` knows

    def __post_init__(self) -> None:
        if self.dim % self.n_head:
            raise UserError(f"dim must be a multiple of n_head, {self.n_head}, not {self.dim}.")
        if self.n_local_heads == -1:
            self.n_local_heads = self.n_head
        if self.intermediate_size is None:
            self.intermediate_size = find_multiple(8 * self.dim // 3, 256)
        self.head_dim = self.dim // self.n_head

    @classmethod
    def from_name(cls, name: str) -> Self:
        """The shape of this name, else the one with the longest name that is part of it, in any case."""
        found = name if name in cls.configs else None
        if found is None:
            inside = sorted((known for known in cls.configs if known.lower() in name.lower()), key=len)
            if not inside:
                raise UserError(f"No known shape is part of the name {name!r}; known are {', '.join(cls.configs)}.")
            found = inside[-1]
        return cls(**cls.configs[found])

    @classmethod
    def from_config(cls, config: ModelConfig) -> Self:
        """The same model in gpt-fast's words."""
        scaling = {key: config.rope.settings[key] for key in _SCALING} if config.rope.kind == "llama3" else None
        moe = config.moe
        args = cls(
            block_size=config.max_context,
            vocab_size=config.vocab_size,
            n_layer=config.layers,
            n_head=config.heads,
            dim=config.dim,
            intermediate_size=config.ffn_dim if moe is None else moe.ffn_dim,
            n_local_heads=config.kv_heads,
            rope_base=config.rope.theta,
            norm_eps=config.norm_eps,
            rope_scaling=scaling,
            num_experts=None if moe is None else moe.experts,
            num_activated_experts=None if moe is None else moe.top_k,
        )
        if replace(args.model_config(), **{key: getattr(config, key) for key in _FREE}) != config:
            raise UserError(f"gpt-fast's modules are of Llama and Mixtral, not of {config.architecture} as here.")
        return args

    def hugging_face(self) -> dict[str, Any]:
        """The fields of a config.json."""
        kind = "llama" if self.num_experts is None else "mixtral"
        fields = {
            "architectures": [f"{kind.capitalize()}ForCausalLM"],
            "model_type": kind,
            "hidden_size": self.dim,
            "num_hidden_layers": self.n_layer,
            "num_attention_heads": self.n_head,
            "num_key_value_heads": self.n_local_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.block_size,
            "rope_theta": self.rope_base,
            "rms_norm_eps": self.norm_eps,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }
        if self.rope_scaling is not None:
            fields["rope_scaling"] = {"rope_type": "llama3", **self.rope_scaling}
        if self.num_experts is not None:
            fields |= {"num_local_experts": self.num_experts, "num_experts_per_tok": self.num_activated_experts}
        return fields

    def model_config(self) -> ModelConfig:
        return read_config(self.hugging_face(), "ModelArgs")
