"""The benchmark's Llama: gpt-fast's Transformer with the shapes that the benchmark knows."""

from genwright.dropin.transformer import model_args, modules
from genwright.dropin.transformer.modules import Attention, FeedForward, KVCache, RMSNorm, TransformerBlock
from genwright.dropin.transformer.shapes import LLAMA_2

__all__ = [
    "Attention", "FeedForward", "KVCache", "ModelArgs", "RMSNorm", "Transformer", "TransformerBlock",
    "transformer_configs",
]  # fmt: skip

transformer_configs = dict(LLAMA_2)


class ModelArgs(model_args.ModelArgs):
    configs = transformer_configs


class Transformer(modules.Transformer):
    args = ModelArgs
