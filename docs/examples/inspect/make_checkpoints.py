"""Write the tiny checkpoints that the scenarios beside this file name: `python make_checkpoints.py [FOLDER]`.

Their weights are random; tokenizers are trained on this project's licence.
"""

import json
import sys
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from genwright.dropin.run import folder as dropin_folder

TEXT = (Path(__file__).parents[3] / "LICENSE").read_text(encoding="utf-8")
WORDS = 400  # of the sentencepiece model; gpt-fast's shape has 32,000


def gpt_fast(target: Path) -> None:
    """A Llama of the shape stories15M, which says only the words that its tokenizer has."""
    sys.path.insert(0, str(dropin_folder("gpt_fast")))
    from model import Transformer

    target.mkdir(parents=True, exist_ok=True)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in Transformer.from_name("stories15M").state_dict().items()}
    torch.manual_seed(0)
    state = {name: 0.05 * torch.randn(shape) + ("norm" in name) for name, shape in shapes.items()}
    # The first channel is always large, and counts against every word above those of the tokenizer.
    state["tok_embeddings.weight"][:, 0] = 20.0
    state["output.weight"][:WORDS, 0], state["output.weight"][WORDS:, 0] = 1.0, -1.0
    torch.save({name: tensor.bfloat16() for name, tensor in state.items()}, target / "model.pth")
    lines = iter(TEXT.splitlines())
    prefix = str(target / "tokenizer")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_prefix=prefix, vocab_size=WORDS, minloglevel=2
    )


def opt(target: Path) -> None:
    """An OPT in FlexLLMGen's folder of arrays, and its tokenizer where transformers finds it."""
    layers, dim = 2, 64
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=512, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    # With words of the script's prompts, which have to fit into 128 tokens.
    words = " Extract airport codes: book a flight from Phoenix to Las Vegas. I want you to San Francisco\nText:"
    tokenizer.train_from_iterator([TEXT, words * 99], trainer)
    (target / "opt-1.3b").mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(target / "opt-1.3b" / "tokenizer.json"))
    names = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "</s>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (target / "opt-1.3b" / "tokenizer_config.json").write_text(json.dumps(settings))
    arrays = target / "opt-1.3b-np"
    arrays.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    vocab = tokenizer.get_vocab_size()
    for name, shape in opt_shapes(layers, dim, vocab).items():
        value = random.normal(1.0 if name.endswith("norm.weight") else 0.0, 0.2, shape).astype(np.float16)
        with (arrays / name).open("wb") as file:
            np.save(file, value)
    config = {"architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": dim, "ffn_dim": 4 * dim}
    config |= {"num_hidden_layers": layers, "num_attention_heads": 4, "vocab_size": vocab, "pad_token_id": 1}
    config |= {"max_position_embeddings": 256, "word_embed_proj_dim": dim, "torch_dtype": "float16"}
    (arrays / "config.json").write_text(json.dumps(config))


def opt_shapes(layers: int, dim: int, vocab: int) -> dict[str, tuple[int, ...]]:
    """FlexLLMGen's files and their shapes."""
    shapes: dict[str, tuple[int, ...]] = {
        "decoder.embed_tokens.weight": (vocab, dim),
        "decoder.embed_positions.weight": (258, dim),
        "lm_head.weight": (vocab, dim),
    }
    linear = {f"self_attn.{part}_proj": (dim, dim) for part in "qkv"} | {"self_attn.out_proj": (dim, dim)}
    linear |= {"fc1": (4 * dim, dim), "fc2": (dim, 4 * dim)}
    for layer in range(layers):
        for name, shape in linear.items():
            shapes[f"decoder.layers.{layer}.{name}.weight"] = shape
            shapes[f"decoder.layers.{layer}.{name}.bias"] = shape[:1]
    norms = [f"layers.{i}.{name}" for i in range(layers) for name in ("self_attn_layer_norm", "final_layer_norm")]
    for name in [*norms, "layer_norm"]:
        shapes |= {f"decoder.{name}.weight": (dim,), f"decoder.{name}.bias": (dim,)}
    return shapes


def unet(target: Path) -> None:
    """The UNet that the scenario's settings describe."""
    from genwright.images.model.checkpoint import draw_weights
    from genwright.images.model.unet_config import UNetConfig

    shape = UNetConfig(
        image_size=16,
        num_channels=32,
        num_res_blocks=1,
        channel_mult=(1, 2),
        attention_resolutions=(8,),
        num_head_channels=32,
        num_classes=None,
        resblock_updown=True,
    )
    torch.save(draw_weights(shape, seed=0).state_dict(), target)


if __name__ == "__main__":
    checkpoints = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent) / "checkpoints"
    gpt_fast(checkpoints / "stories15M")
    opt(checkpoints / "opt_weights")
    unet(checkpoints / "unet.pt")
