"""gpt-fast's model module: its shapes and its Transformer, with Mixtral's beside them."""

from genwright.dropin.transformer import model_args, modules
from genwright.dropin.transformer.model_args import find_multiple
from genwright.dropin.transformer.modules import (
    Attention,
    ConditionalFeedForward,
    FeedForward,
    KVCache,
    MOEFeedForward,
    RMSNorm,
    TransformerBlock,
    get_mask_mod,
)
from genwright.dropin.transformer.shapes import LLAMA_2, LLAMA_3, MIXTRAL, STORIES

__all__ = [
    "Attention", "ConditionalFeedForward", "FeedForward", "KVCache", "MOEFeedForward", "ModelArgs", "RMSNorm",
    "Transformer", "TransformerBlock", "find_multiple", "get_mask_mod", "transformer_configs",
]  # fmt: skip

transformer_configs = {**LLAMA_2, **STORIES, **LLAMA_3, **MIXTRAL}


class ModelArgs(model_args.ModelArgs):
    configs = transformer_configs


class Transformer(modules.Transformer):
    args = ModelArgs
