"""A tiny OPT in FlexLLMGen's folder of arrays, with a small tokenizer."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer
from transformers import OPTConfig, OPTForCausalLM

LAYERS, DIM, HEADS, CONTEXT = 3, 64, 4, 256
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


@dataclass
class Tiny:
    """`path` is FlexLLMGen's --path; the arrays are float16, and `model` has the same values."""

    path: Path
    model: OPTForCausalLM

    def config(self, **changes: Any):
        from flexllmgen.opt_config import OptConfig

        sizes = {"hidden_size": DIM, "input_dim": DIM, "ffn_embed_dim": 4 * DIM, "n_head": HEADS}
        vocab = self.model.config.vocab_size
        return OptConfig("tiny", LAYERS, CONTEXT, vocab_size=vocab, **{**sizes, **changes})


def write_tokenizer(path: Path) -> int:
    """A small byte-level tokenizer with OPT's special ids; returns the size of its vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=512, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    # With words of the original's prompts, which have to fit into 128 tokens.
    words = " Extract airport codes: book a flight from Phoenix to Las Vegas"
    tokenizer.train_from_iterator([(Path(__file__).parents[3] / "LICENSE").read_text(), words * 99], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", 2)])
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    names = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "</s>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer.get_vocab_size()


def write_arrays(model: OPTForCausalLM, target: Path) -> None:
    """As FlexLLMGen writes them, in float16."""
    target.mkdir(parents=True, exist_ok=True)
    for name, tensor in model.state_dict().items():
        name = name.replace("model.", "").replace("decoder.final_layer_norm", "decoder.layer_norm")
        with (target / name).open("wb") as file:
            np.save(file, tensor.half().numpy())


def make_tiny(path: Path) -> Tiny:
    """Folders of the arrays and, for FlexLLMGen's commands, which know published names alone, one named opt-125m."""
    vocab = write_tokenizer(path / "opt-125m-np")
    sizes = {"hidden_size": DIM, "word_embed_proj_dim": DIM, "ffn_dim": 4 * DIM, "num_hidden_layers": LAYERS}
    config = OPTConfig(vocab_size=vocab, num_attention_heads=HEADS, max_position_embeddings=CONTEXT, **sizes)
    torch.manual_seed(0)
    model = OPTForCausalLM(config).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.normal_(1.0 if name.endswith("norm.weight") else 0.0, 0.2).copy_(tensor.half().float())
    write_arrays(model, path / "tiny-np")
    write_arrays(model, path / "opt-125m-np")
    config.save_pretrained(path / "opt-125m-np")
    return Tiny(path, model)
