"""A tiny random model to chat with: a tokenizer of bytes, a ChatML template, and answers of letters without end."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from genwright.text.tokenizer.chat_template import find_template


def make_chat_model(folder: Path, context: int = 4096, **generation: Any) -> Path:
    tokens = ["<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(tokens[:2])
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"vocab_size": len(tokens), "max_position_embeddings": context, "eos_token_id": 1}
    model = LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.5))
    said = torch.tensor([token.isascii() and token.isalpha() for token in tokens])
    with torch.no_grad():  # the first channel stays as it is, and forbids all but letters, which a screen shows
        layer = model.model.layers[0]
        model.model.embed_tokens.weight[:, 0] = 3
        layer.self_attn.o_proj.weight[0] = layer.mlp.down_proj.weight[0] = 0
        model.lm_head.weight *= 0.3  # so that draws differ
        model.lm_head.weight[:, 0] = torch.where(said, 0.0, -1000.0)
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": find_template("chatml")}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1, **generation}))
    return folder
