"""DeepSeek's model module: a Transformer that owns the original's parameters, and on which the engine computes."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from genwright.errors import UserError
from genwright.kernels import PAGE
from genwright.quant.fp8 import BLOCK, VALUES, Fp8Blocks, scales_shape
from genwright.quant.packed import Weight
from genwright.text.architectures.registry import architecture, read_config
from genwright.text.architectures.weight_map import Source, Sources
from genwright.text.cache.layout import CacheSpec
from genwright.text.checkpoints.deepseek import deepseek_name, hf_config
from genwright.text.config import ModelConfig
from genwright.text.config_file import read_json
from genwright.text.engine.executor import ResidentExecutor
from genwright.text.engine.resident_executor import resident_executor
from genwright.text.loader import Model, rope_tables
from genwright.text.memory import MAX_STEP_TOKENS
from genwright.text.ops.backends import new_ops
from genwright.text.ops.step import Chunk, unread

__all__ = ["ModelArgs", "Transformer"]


@dataclass
class ModelArgs:
    """DeepSeek's description of a model, and how many sequences and tokens its cache has room for."""

    max_batch_size: int = 8
    max_seq_len: int = 4096 * 4
    dtype: Literal["bf16", "fp8"] = "bf16"
    scale_fmt: str | None = None
    vocab_size: int = 102400
    dim: int = 2048
    inter_dim: int = 10944
    moe_inter_dim: int = 1408
    n_layers: int = 27
    n_dense_layers: int = 1
    n_heads: int = 16
    n_routed_experts: int = 64
    n_shared_experts: int = 2
    n_activated_experts: int = 6
    n_expert_groups: int = 1
    n_limited_groups: int = 1
    score_func: Literal["softmax", "sigmoid"] = "softmax"
    route_scale: float = 1.0
    q_lora_rank: int = 0
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128
    original_seq_len: int = 4096
    rope_theta: float = 10000.0
    rope_factor: float = 40
    beta_fast: int = 32
    beta_slow: int = 1
    mscale: float = 1.0

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Those of a config_*.json."""
        values = read_json(path)
        hf_config(values, str(path), draft=False)  # raises an error about a key or a value
        return cls(**values)

    def model_config(self) -> ModelConfig:
        return read_config(hf_config(asdict(self), "ModelArgs", draft=False), "ModelArgs")


class Transformer(nn.Module):
    """A rank's part of the model: some heads, some experts whole, a part of other matrices and of the vocabulary.

    The engine multiplies with several matrices at once, such as the first ones of all experts. They are put next to
    each other before the first step, and each parameter is then a view of its rows, so that nothing is stored twice.
    Before a checkpoint is loaded or the model is moved they are separated, and the next step packs them again.
    """

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.args, self.max_seq_len, self.config = args, args.max_seq_len, args.model_config()
        self.group = dist.group.WORLD if dist.is_initialized() and dist.get_world_size() > 1 else None
        self.ranks, self.rank = (1, 0) if self.group is None else (dist.get_world_size(), dist.get_rank())
        if args.n_routed_experts % self.ranks:
            raise UserError(f"{args.n_routed_experts} experts cannot be divided evenly among {self.ranks} ranks.")
        weights = architecture(self.config).weight_map(self.config)
        self.exact, self.unpacked = weights.exact, weights.unpacked
        # By the engine's names: the weights outside the layers, and those of each layer.
        self.blocks = [weights.outer, *(weights.block(layer) for layer in range(args.n_layers))]
        for block in self.blocks:
            for name, sources in block.items():
                for source in self._own(sources):
                    self._add_parameters(name, source)
        self._executor: ResidentExecutor | None = None
        self.register_state_dict_pre_hook(lambda module, prefix, keep_vars: module.unpack())
        self.register_load_state_dict_pre_hook(lambda module, *_: module.unpack())

    def _own(self, sources: Sources) -> list[Source]:
        """The sources without the experts of other ranks."""
        return [s for s in sources if s.owner(self.args.n_routed_experts, self.ranks) in (None, self.rank)]

    def _add_parameters(self, weight: str, source: Source) -> None:
        """Add this rank's part of a tensor; FP8 adds its scales."""
        plain = weight in ("embed", "head", "router") or len(source.shape) == 1
        fp8 = self.args.dtype == "fp8" and not plain
        shape = source.shape
        if source.expert is None:
            part = source._replace(may_stay_whole=False).part(self.rank, self.ranks, BLOCK if fp8 else 1)
            shape = part.shape(shape)
        dtype = VALUES if fp8 else torch.get_default_dtype() if plain else torch.bfloat16
        name = deepseek_name(source.name)
        self._add(name, torch.zeros(shape, dtype=torch.float32 if weight == "router.correction" else dtype))
        if fp8:
            self._add(name.removesuffix("weight") + "scale", torch.ones(scales_shape(shape), dtype=torch.float32))

    def _add(self, name: str, tensor: Tensor) -> None:
        *path, last = name.split(".")
        module: nn.Module = self
        for part, following in zip(path, [*path[1:], last], strict=True):
            if part not in module._modules:
                module.add_module(part, nn.ModuleList() if following.isdigit() else nn.Module())
            module = module.get_submodule(part)
        module.register_parameter(last, nn.Parameter(tensor, requires_grad=False))

    @torch.inference_mode(False)
    @torch.no_grad()
    def unpack(self) -> None:
        """Give each parameter memory of its own, as safetensors' `load_model` wants it; the cache is lost."""
        self._executor = None
        for each in self.parameters():
            if each.untyped_storage().nbytes() > each.nbytes:
                each.data = each.data.clone()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.unpack()
        return super()._apply(fn, recurse)

    def _pack(self, block: Mapping[str, Sources], dtype: torch.dtype) -> dict[str, Any]:
        """The weights of a block by the engine's names."""
        return {
            name: self._weight(name, [deepseek_name(source.name) for source in self._own(sources)], dtype)
            for name, sources in block.items()
        }

    def _weight(self, name: str, parameters: list[str], dtype: torch.dtype) -> Weight:
        found = [self.get_parameter(each) for each in parameters]
        if name in self.exact:
            return found[0].data.float()
        fused: Weight
        if found[0].dtype != VALUES:
            fused = values = torch.cat([each.data for each in found]) if len(found) > 1 else found[0].data
        else:
            scales = [self.get_parameter(each.removesuffix("weight") + "scale").data for each in parameters]
            fused = Fp8Blocks.cat([Fp8Blocks(weight.data, s) for weight, s in zip(found, scales, strict=True)])
            if name in self.unpacked:
                return fused.dequantize(dtype)
            values = fused.values
        for each, rows in zip(found, values.split([len(each) for each in found]), strict=True):
            each.data = rows
        return fused

    @torch.inference_mode(False)  # a checkpoint may be loaded into the parameters later
    @torch.no_grad()
    def _new_executor(self) -> ResidentExecutor:
        args, cfg = self.args, self.config
        embed = self.get_parameter("embed.weight")
        device, dtype, context = embed.device, embed.dtype, self._pages * PAGE
        outer, *blocks = (self._pack(block, dtype) for block in self.blocks)
        kind = architecture(cfg)
        spec = CacheSpec(kind.cache_layers(cfg), dtype)
        tables, columns = rope_tables(cfg, args.max_seq_len, device), len(self.get_parameter("head.weight"))
        model = Model(cfg, kind, outer, blocks, dtype, device, context, tables, columns, spec)
        ops = new_ops("auto", device, False, self.group)
        graph = self.group is None or dist.get_backend(self.group) == "nccl"
        pages, tokens = args.max_batch_size * self._pages, max(MAX_STEP_TOKENS[device.type], args.max_batch_size)
        return resident_executor(model, ops, pages, args.max_batch_size, tokens, graph)

    @property
    def _pages(self) -> int:
        """Pages of a sequence."""
        return -(-self.max_seq_len // PAGE)

    @torch.inference_mode()
    def forward(self, tokens: Tensor, start_pos: int = 0) -> Tensor:
        """Logits [batch, vocab] of the last of the tokens [batch, tokens], which begin at position `start_pos`."""
        batch, length = tokens.shape
        if batch > self.args.max_batch_size or start_pos + length > self.max_seq_len:
            raise UserError(
                f"There are {batch} sequences with {start_pos + length:,} tokens, but the model has room for "
                f"{self.args.max_batch_size} with {self.max_seq_len:,}; set max_batch_size and max_seq_len in --config."
            )
        executor = self._executor = self._executor or self._new_executor()
        columns = len(executor.buffers.tokens) // batch
        for part in tokens.split(columns, dim=1):  # a long prompt takes several steps
            width = part.shape[1]
            chunks = [
                Chunk([unread(row * width + i) for i in range(width)], start_pos, self._table(row))
                for row in range(batch)
            ]
            logits = executor.run(chunks, part.flatten().long())
            start_pos += width
        return executor.ops.all_gather(logits).to(executor.model.dtype, copy=True)  # a CUDA graph reuses its output

    def _table(self, row: int) -> Any:
        """The pages of a sequence, which are always the same."""
        return np.arange(row * self._pages, (row + 1) * self._pages, dtype=np.int64)[None]
