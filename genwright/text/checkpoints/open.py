"""open_checkpoint: recognise a checkpoint's format by its content."""

import os
from pathlib import Path

from genwright.errors import UserError
from genwright.text.catalogue import nearest
from genwright.text.checkpoints.deepseek import DeepSeekShards
from genwright.text.checkpoints.gguf import GGUF
from genwright.text.checkpoints.gptfast import GptFast
from genwright.text.checkpoints.huggingface import HuggingFace
from genwright.text.checkpoints.library_folder import LibraryFolder
from genwright.text.checkpoints.opt import OptArrays
from genwright.text.checkpoints.protocol import Checkpoint
from genwright.text.checkpoints.quantized import Quantized
from genwright.text.checkpoints.random import RandomWeights


def open_checkpoint(model: str, arch: str | None = None) -> Checkpoint:
    """Open a folder, a file or a `random:` name; `arch` names the shape of a checkpoint without config.json."""
    if model.startswith("random:"):
        return RandomWeights(model)
    path = Path(os.path.expanduser(model))
    if not path.exists():
        hint = nearest(model) or "`genwright pull` lists the models that can be fetched."
        raise UserError(f"There is no file or folder {path}; {hint}")
    if path.is_dir():
        for reader in (Quantized, LibraryFolder, HuggingFace):  # the last one recognises all of these folders
            if reader.recognises(path):
                return reader(path)
        if DeepSeekShards.recognises(path):
            return DeepSeekShards(path, arch)
        if OptArrays.recognises(path):
            return OptArrays(path, arch)
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.is_file() and GGUF.recognises(file):
            return GGUF(file)
        if file.is_file() and GptFast.recognises(file):
            return GptFast(file, arch)
    if path.is_file() and HuggingFace.recognises(path.parent):  # a file of such a folder
        return open_checkpoint(str(path.parent), arch)
    raise UserError(
        f"{path} holds no checkpoint of a known format: a Hugging Face folder (config.json with safetensors or "
        ".bin files), a GGUF file, gpt-fast's model.pth, DeepSeek's model*-mp*.safetensors, or FlexLLMGen's arrays."
    )
