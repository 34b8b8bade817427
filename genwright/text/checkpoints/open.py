"""open_checkpoint: recognise a checkpoint's format by its content."""

import os
import re
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

_PART = re.compile(r"-[0-9]{5}(-of-[0-9]{5}\.gguf)$")  # the end of the name of a part of a split GGUF file


def open_checkpoint(model: str, arch: str | None = None) -> Checkpoint:
    """Open a folder, a file or a `random:` name; `arch` names the shape of a checkpoint without config.json."""
    checkpoint = _open(model, arch)
    if arch is not None and isinstance(checkpoint, RandomWeights | HuggingFace | GGUF):
        raise UserError(f"arch (--arch) is for a checkpoint without a configuration, but {checkpoint.path} has one.")
    return checkpoint


def _open(model: str, arch: str | None) -> Checkpoint:
    if not model:
        raise UserError("The model's name is empty; pass a folder, a file or a name that `genwright pull` lists.")
    if model.startswith("random:"):
        return RandomWeights(model)
    path = Path(os.path.expanduser(model))
    if path.is_symlink() and not path.exists():
        raise UserError(f"{path} is a link to {os.readlink(path)}, which does not exist; download the model again.")
    if not path.exists():
        raise UserError(f"There is no file or folder {path}; {nearest(model)}")
    if path.is_file() and not path.stat().st_size:
        raise UserError(f"{path} is empty; download or copy it again.")
    if path.is_dir():
        for reader in (Quantized, LibraryFolder, HuggingFace):  # the last one recognises all of these folders
            if reader.recognises(path):
                return reader(path)
        if DeepSeekShards.recognises(path):
            return DeepSeekShards(path, arch)
        if OptArrays.recognises(path):
            return OptArrays(path, arch)
    file = _model_file(path)
    if file is not None:
        return GGUF(file) if GGUF.recognises(file) else GptFast(file, arch)
    if path.is_file() and HuggingFace.recognises(path.parent):  # a file of such a folder
        return _open(str(path.parent), arch)
    raise UserError(
        f"{path} holds no checkpoint of a known format: a Hugging Face folder (config.json with safetensors or "
        ".bin files), a GGUF file, gpt-fast's model.pth, DeepSeek's model*-mp*.safetensors, or FlexLLMGen's arrays."
    )


def _model_file(path: Path) -> Path | None:
    """The only GGUF or gpt-fast file of a folder, or the file itself if it is one; of a split model, the first part."""
    files = [file for file in (sorted(path.iterdir()) if path.is_dir() else [path]) if file.is_file()]
    ggufs = {_PART.sub(r"\1", file.name): file for file in reversed(files) if GGUF.recognises(file)}
    # llama.cpp's image encoders have mmproj in their names.
    language = [file for file in ggufs.values() if "mmproj" not in file.name.lower()]
    # gpt-fast's scripts write quantized copies beside model.pth.
    main = [file for file in files if file.name == "model.pth" and GptFast.recognises(file)]
    found = [*(language or ggufs.values()), *main] or [file for file in files if GptFast.recognises(file)]
    if len(found) > 1:
        names = ", ".join(sorted(file.name for file in found)[:3])
        raise UserError(f"{path} holds {len(found)} models, such as {names}; pass the path of one of them.")
    return found[0] if found else None
