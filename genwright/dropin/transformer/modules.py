"""The modules of gpt-fast's Transformer: they own the parameters, and the engine's functions compute."""

from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import silu

from genwright.dropin.transformer.dense_ops import DenseCache, DenseOps, DenseStep, Mask
from genwright.dropin.transformer.model_args import ModelArgs, find_multiple
from genwright.text.architectures import llama
from genwright.text.config import ModelConfig
from genwright.text.ops.norm import rms_norm
from genwright.text.ops.rope import cos_sin, frequencies

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def get_mask_mod(mask_mod: MaskMod, offset: Tensor) -> MaskMod:
    """The mask of queries whose first one is at position `offset`."""

    def at_offset(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return mask_mod(b, h, q + offset, kv)

    return at_offset


class KVCache(nn.Module):
    k_cache: Tensor
    v_cache: Tensor

    def __init__(
        self,
        max_batch_size: int,
        max_seq_length: int,
        n_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.bfloat16,
    ):
        super().__init__()
        shape = (max_batch_size, n_heads, max_seq_length, head_dim)
        self.register_buffer("k_cache", torch.zeros(shape, dtype=dtype))
        self.register_buffer("v_cache", torch.zeros(shape, dtype=dtype))


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class Attention(nn.Module):
    """Separate wq, wk and wv of a checkpoint are fused when it is loaded."""

    def __init__(self, config: ModelArgs):
        super().__init__()
        self.n_head, self.n_local_heads = config.n_head, config.n_local_heads
        self.head_dim, self.dim = config.head_dim, config.dim
        self.wqkv = nn.Linear(config.dim, (config.n_head + 2 * config.n_local_heads) * config.head_dim, bias=False)
        self.wo = nn.Linear(config.dim, config.dim, bias=False)
        self.kv_cache: KVCache | None = None
        self.register_load_state_dict_pre_hook(_fuse_qkv)


def _fuse_qkv(module: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    if f"{prefix}wq.weight" in state:
        state[f"{prefix}wqkv.weight"] = torch.cat([state.pop(f"{prefix}w{part}.weight") for part in "qkv"])


class FeedForward(nn.Module):
    def __init__(self, config: ModelArgs):
        super().__init__()
        assert config.intermediate_size is not None
        self.w1 = nn.Linear(config.dim, config.intermediate_size, bias=False)
        self.w3 = nn.Linear(config.dim, config.intermediate_size, bias=False)
        self.w2 = nn.Linear(config.intermediate_size, config.dim, bias=False)


class ConditionalFeedForward(nn.Module):
    """The experts of a layer: w1 and w3 [experts, intermediate_size, dim], w2 [experts, dim, intermediate_size]."""

    def __init__(self, config: ModelArgs):
        super().__init__()
        assert config.num_experts is not None and config.intermediate_size is not None
        first = config.num_experts, config.intermediate_size, config.dim
        self.w1 = nn.Parameter(torch.empty(first))
        self.w2 = nn.Parameter(torch.empty(first[0], first[2], first[1]))
        self.w3 = nn.Parameter(torch.empty(first))

    def product(self, name: str, x: Tensor, index: Any, equation: str) -> Tensor:
        """x times one expert's matrix, or those of a tensor of experts."""
        return torch.einsum(equation, x, getattr(self, name)[index])

    def forward(self, x: Tensor, expert_indices: Tensor) -> Tensor:
        """Each token's experts' outputs [tokens, top_k, dim], without waiting for a GPU to name them.

        A few tokens gather the matrices that they need; more of them go through all experts, each read once.
        """
        if expert_indices.numel() <= self.w1.shape[0]:
            gate, up = (self.product(name, x, expert_indices, "ti,taoi->tao") for name in ("w1", "w3"))
            return self.product("w2", silu(gate) * up, expert_indices, "tao,taio->tai")
        outputs = []
        for index in range(self.w1.shape[0]):
            gate, up = (self.product(name, x, index, "ti,oi->to") for name in ("w1", "w3"))
            outputs.append(self.product("w2", silu(gate) * up, index, "ti,oi->to"))
        rows = torch.arange(len(x), device=x.device)[:, None]
        return torch.stack(outputs)[expert_indices, rows]


class MOEFeedForward(nn.Module):
    def __init__(self, config: ModelArgs):
        super().__init__()
        assert config.num_experts is not None
        self.gate = nn.Linear(config.dim, config.num_experts, bias=False)
        self.cond_ffn = ConditionalFeedForward(config)
        self.dim, self.num_activated_experts = config.dim, config.num_activated_experts


class TransformerBlock(nn.Module):
    attention: Attention

    def __init__(self, config: ModelArgs, model_config: ModelConfig, layer: int):
        super().__init__()
        self.attention = Attention(config)
        if config.num_experts is None:
            self.feed_forward = FeedForward(config)
        else:
            self.block_sparse_moe = MOEFeedForward(config)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.model_config, self.layer, self.ops = model_config, layer, DenseOps()

    def weights(self) -> dict[str, Any]:
        """The weights by the engine's names."""
        found = {
            "attention_norm": self.attention_norm.weight,
            "qkv": self.attention.wqkv,
            "out": self.attention.wo,
            "mlp_norm": self.ffn_norm.weight,
        }
        if self.model_config.moe is None:
            mlp = self.feed_forward
            return {**found, "gate": mlp.w1, "up": mlp.w3, "down": mlp.w2}
        return {**found, "router": self.block_sparse_moe.gate, "experts": self.block_sparse_moe.cond_ffn}

    def forward(self, x: Tensor, input_pos: Tensor, freqs_cis: Tensor, mask: Mask) -> Tensor:
        """One layer: x [batch, tokens, dim]."""
        kept = self.attention.kv_cache
        assert kept is not None
        k, v = kept.k_cache, kept.v_cache
        if len(x) < len(k):
            k, v = k[: len(x)], v[: len(x)]
        cache: Any = DenseCache(self.layer, k, v)
        step: Any = DenseStep(x, len(x), input_pos, freqs_cis, mask)  # no block reads the tokens
        y = llama.block(self.ops, self.model_config, self.weights(), cache, x.flatten(0, 1), step)
        return y.view_as(x)


class Transformer(nn.Module):
    """gpt-fast's model, with or without experts; `forward` takes a block mask or does without."""

    args: ClassVar[type[ModelArgs]] = ModelArgs

    def __init__(self, config: ModelArgs):
        super().__init__()
        self.config, self.model_config = config, config.model_config()
        _ = self.model_config.attention  # computed now, because torch.compile cannot trace a cached property's lock
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(TransformerBlock(config, self.model_config, i) for i in range(config.n_layer))
        self.norm = RMSNorm(config.dim, eps=config.norm_eps)
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)
        self.freqs_cis: Tensor | None = None
        self.max_batch_size = self.max_seq_length = -1
        self.get_mask_mod = get_mask_mod
        self.ops = DenseOps()

    @classmethod
    def from_name(cls, name: str) -> Self:
        return cls(cls.args.from_name(name))

    def setup_caches(self, max_batch_size: int, max_seq_length: int) -> None:
        """Make room for so many sequences and tokens, on the current default device."""
        if self.max_seq_length >= max_seq_length and self.max_batch_size >= max_batch_size:
            return
        self.max_seq_length, self.max_batch_size = find_multiple(max_seq_length, 8), max_batch_size
        dtype = self._dtype()
        for block in self.layers:
            attention: Any = block.attention
            attention.kv_cache = KVCache(
                max_batch_size, self.max_seq_length, attention.n_local_heads, attention.head_dim, dtype
            )
        inverse, scale = frequencies(self.model_config.rope, self.config.head_dim)
        table = cos_sin(inverse, scale, torch.arange(self.config.block_size, device=inverse.device))
        self.freqs_cis = torch.stack(table, dim=-1).squeeze(1).to(dtype)

    def causal(self, input_pos: Tensor) -> Tensor:
        """Which keys the queries at these positions see, [1, 1, queries, max_seq_length]."""
        keys = torch.arange(self.max_seq_length, device=input_pos.device)
        return (keys <= input_pos[:, None])[None, None]

    def _dtype(self) -> torch.dtype:
        """The type that the model computes in; a quantized head has it in its scales."""
        for name in ("scales", "scales_and_zeros"):
            if isinstance(scales := getattr(self.output, name, None), Tensor):
                return scales.dtype
        return self.output.weight.dtype

    def forward(
        self, mask: BlockMask | Tensor | None = None, idx: Tensor | None = None, input_pos: Tensor | None = None
    ) -> Tensor:
        """Logits [batch, tokens, vocab]: `model(mask, idx, input_pos)`, or `model(idx, input_pos)` for causal."""
        if isinstance(mask, Tensor):
            idx, input_pos = mask, idx if input_pos is None else input_pos
        assert self.freqs_cis is not None, "Caches must be initialized first"
        assert idx is not None and input_pos is not None
        visible: Mask
        if isinstance(mask, BlockMask):
            mask.mask_mod = self.get_mask_mod(mask.mask_mod, input_pos[0])
            visible = mask
        else:
            visible = self.causal(input_pos)
        freqs_cis = self.freqs_cis[input_pos]
        step: Any = DenseStep(idx.flatten(), len(idx), input_pos, freqs_cis, visible)
        outer = {"embed": self.tok_embeddings.weight, "norm": self.norm.weight, "head": self.output}
        x = llama.embed(self.ops, self.model_config, outer, step).unflatten(0, idx.shape)
        for layer in self.layers:
            x = layer(x, input_pos, freqs_cis, visible)
        return llama.head(self.ops, self.model_config, outer, x.flatten(0, 1), step).unflatten(0, idx.shape)
