"""OptConfig, OPT's published shapes, and FlexLLMGen's folders of weights made from Hugging Face folders."""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from genwright.errors import UserError
from genwright.text.architectures.registry import named_shape
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.export.convert import hugging_face_config, new_path, write_config_files
from genwright.text.hub import fetch

DUMMY_WEIGHT = "_DUMMY_"  # in place of a path: random weights of the model's shape
_STAGE = "opt-175b-stage"  # a quarter of OPT-175B's layers, for a rank of four


@dataclass(frozen=True)
class OptConfig:
    """The shape of an OPT model, in FlexLLMGen's words."""

    name: str = "opt-125m"
    num_hidden_layers: int = 12
    max_seq_len: int = 2048
    hidden_size: int = 768
    n_head: int = 12
    input_dim: int = 768
    ffn_embed_dim: int = 3072
    pad: int = 1
    activation_fn: str = "relu"
    vocab_size: int = 50272
    layer_norm_eps: float = 0.00001
    pad_token_id: int = 1
    dtype: type = np.float16

    def model_bytes(self) -> int:
        """Bytes of the weights in 16 bits, as FlexLLMGen counts them: it leaves out two biases of each layer."""
        h, ffn = self.input_dim, self.ffn_embed_dim
        layer = 4 * h * h + 2 * h * ffn + 7 * h + ffn
        return 2 * (self.num_hidden_layers * layer + self.vocab_size * (h + 1))

    def cache_bytes(self, batch_size: int, seq_len: int) -> int:
        """Bytes of the keys and values in 16 bits."""
        return 2 * 2 * batch_size * seq_len * self.num_hidden_layers * self.input_dim

    def hidden_bytes(self, batch_size: int, seq_len: int) -> int:
        """Bytes of the hidden state in 16 bits."""
        return 2 * batch_size * seq_len * self.input_dim

    def hugging_face(self) -> dict[str, Any]:
        """The same shape as config.json."""
        return {
            "architectures": ["OPTForCausalLM"],
            "model_type": "opt",
            "hidden_size": self.input_dim,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.n_head,
            "ffn_dim": self.ffn_embed_dim,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_seq_len,
            "activation_function": self.activation_fn,
            "torch_dtype": np.dtype(self.dtype).name,
            "pad_token_id": self.pad_token_id,
            "eos_token_id": 2,
        }


def get_opt_config(name: str, **kwargs: Any) -> OptConfig:
    """The shape of a published model, such as `facebook/opt-30b`, with some fields replaced."""
    name = name.rpartition("/")[2].lower()
    shape = named_shape("opt-175b" if name == _STAGE else shape_name(name))
    if shape["model_type"] != "opt":
        raise UserError(
            f"{name} is not an OPT model; FlexLLMGen's modules run OPT alone, `genwright generate` the rest."
        )
    config = OptConfig(
        name,
        24 if name == _STAGE else shape["num_hidden_layers"],
        shape["max_position_embeddings"],
        shape["hidden_size"],
        shape["num_attention_heads"],
        shape["hidden_size"],
        shape["ffn_dim"],
        activation_fn=shape.get("activation_function", "relu"),
        vocab_size=shape["vocab_size"],
    )
    return replace(config, **kwargs)


def shape_name(name: str) -> str:
    """The name of the shape that a fine-tuned model, such as opt-iml-max-30b, has too."""
    return name.replace("-iml-max", "").replace("-iml", "")


def weight_folder(name: str, path: str) -> Path:
    """Where FlexLLMGen keeps a model's arrays."""
    return Path(path).expanduser().absolute() / f"{name.rpartition('/')[2].lower()}-np"


def download_opt_weights(model_name: str, path: str) -> None:
    """Write the arrays of a model from its Hugging Face folder: `PATH/NAME`, else as `hf:facebook/NAME` is fetched."""
    target = weight_folder(model_name, path)
    name = target.name.removesuffix("-np")
    local = target.with_name(name)
    checkpoint = open_checkpoint(str(local if local.is_dir() else fetch(f"hf:facebook/{name}")))
    if checkpoint.config.architecture != "opt":
        raise UserError(f"{checkpoint.path} is not an OPT model.")
    print(f"Writing the arrays of {checkpoint.path} to {target} ...")
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_path(target) as part:
        for tensor in checkpoint.names():
            kind = checkpoint.dtype(tensor)
            value = checkpoint.tensor(tensor, torch.float16 if kind == torch.bfloat16 else kind)
            file = tensor.removeprefix("model.").replace("decoder.final_layer_norm", "decoder.layer_norm")
            with (part / file).open("wb") as array:  # np.save would append .npy to a name
                np.save(array, value.numpy())
        if not (head := part / "lm_head.weight").exists():
            head.hardlink_to(part / "decoder.embed_tokens.weight")
        write_config_files(checkpoint, part, hugging_face_config(checkpoint, None))


@contextmanager
def open_weights(config: OptConfig, path: str) -> Iterator[str]:
    """The model to load: random weights for a dummy path, else the folder of arrays, written first if there is none."""
    if DUMMY_WEIGHT in path:
        yield _random_weights(config)
        return
    folder = weight_folder(config.name, path)
    if not folder.is_dir():
        download_opt_weights(config.name, path)
    if (folder / "config.json").exists():
        yield str(folder)
        return
    with TemporaryDirectory() as described:  # FlexLLMGen's own folders have no config.json
        for file in folder.iterdir():
            (Path(described) / file.name).symlink_to(file)
        (Path(described) / "config.json").write_text(json.dumps(config.hugging_face()), encoding="utf-8")
        yield described


def _random_weights(config: OptConfig) -> str:
    """The name of a published shape with random weights and this configuration's number of layers."""
    name = "opt-175b" if config.name == _STAGE else shape_name(config.name)
    known = get_opt_config(name)
    if replace(config, name=name, num_hidden_layers=0, dtype=known.dtype) != replace(known, num_hidden_layers=0):
        raise UserError(f"{DUMMY_WEIGHT} weights need the shape of a published model; only its layers may differ.")
    return f"random:{name},layers={config.num_hidden_layers}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True, help="The model, such as facebook/opt-125m.")
    parser.add_argument("--path", default="~/opt_weights", help="The folder of the models' folders of arrays.")
    arguments = parser.parse_args()
    download_opt_weights(arguments.model, arguments.path)
