"""The benchmark's Mixtral, which has half of the layers."""

from genwright.dropin.transformer import model_args, modules
from genwright.dropin.transformer.modules import (
    Attention,
    ConditionalFeedForward,
    KVCache,
    MOEFeedForward,
    RMSNorm,
    TransformerBlock,
)
from genwright.dropin.transformer.shapes import MIXTRAL

__all__ = [
    "Attention", "ConditionalFeedForward", "KVCache", "MOEFeedForward", "ModelArgs", "RMSNorm", "Transformer",
    "TransformerBlock", "transformer_configs",
]  # fmt: skip

transformer_configs = {name: {**shape, "n_layer": 16} for name, shape in MIXTRAL.items()}


class ModelArgs(model_args.ModelArgs):
    configs = transformer_configs


class Transformer(modules.Transformer):
    args = ModelArgs
