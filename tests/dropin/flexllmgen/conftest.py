"""The drop-in's modules under the original's names, and a tiny OPT in FlexLLMGen's folder of arrays."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import OPTConfig, OPTForCausalLM

from genwright.dropin.run import folder

sys.path.insert(0, str(folder("flexllmgen")))

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
    """A tokenizer of bytes with OPT's special ids; returns the size of its vocabulary."""
    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(single="</s> $A", special_tokens=[("</s>", 2)])
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    names = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "</s>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return len(tokens)


def write_arrays(model: OPTForCausalLM, target: Path) -> None:
    """As FlexLLMGen writes them, in float16."""
    target.mkdir(parents=True, exist_ok=True)
    for name, tensor in model.state_dict().items():
        name = name.replace("model.", "").replace("decoder.final_layer_norm", "decoder.layer_norm")
        with (target / name).open("wb") as file:
            np.save(file, tensor.half().numpy())


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    path = tmp_path_factory.mktemp("opt_weights")
    vocab = write_tokenizer(path / "opt-125m-np")
    sizes = {"hidden_size": DIM, "word_embed_proj_dim": DIM, "ffn_dim": 4 * DIM, "num_hidden_layers": LAYERS}
    config = OPTConfig(vocab_size=vocab, num_attention_heads=HEADS, max_position_embeddings=CONTEXT, **sizes)
    torch.manual_seed(0)
    model = OPTForCausalLM(config).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.normal_(1.0 if name.endswith("norm.weight") else 0.0, 0.2).copy_(tensor.half().float())
    write_arrays(model, path / "tiny-np")
    # Named as a published model, because FlexLLMGen's commands know no other names.
    write_arrays(model, path / "opt-125m-np")
    config.save_pretrained(path / "opt-125m-np")
    return Tiny(path, model)
