"""Registry of architectures. A new one is a file in this folder and an entry in ARCHITECTURES."""

import warnings
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from genwright.arguments import short
from genwright.errors import GenwrightWarning, UserError
from genwright.text.architectures import deepseek, gemma3, llama, opt
from genwright.text.architectures.config_fields import check_quantization, read_sizes
from genwright.text.architectures.protocol import Architecture, Gguf
from genwright.text.config import ModelConfig
from genwright.text.config_file import FieldReader

ARCHITECTURES: dict[str, Architecture] = {"llama": llama, "deepseek": deepseek, "opt": opt, "gemma3": gemma3}

CLASSES = {name: arch for arch in ARCHITECTURES.values() for name in arch.CLASSES.values()}
MODEL_TYPES = {kind: name for arch in ARCHITECTURES.values() for kind, name in arch.CLASSES.items()}
GGUF: dict[str, Gguf] = {name: gguf for arch in ARCHITECTURES.values() for name, gguf in arch.GGUF.items()}
SHAPES = {name: shape for arch in ARCHITECTURES.values() for name, shape in arch.SHAPES.items()}
ALIASES = {name: known for arch in ARCHITECTURES.values() for name, known in arch.ALIASES.items()}


def architecture(cfg: ModelConfig) -> Architecture:
    return ARCHITECTURES[cfg.architecture]


def read_config(config: Mapping[str, Any], where: str) -> ModelConfig:
    """Read a config.json of any known architecture; `where` names the file in errors."""
    read = FieldReader(config, where)
    family = _family(read)
    check_quantization(read)
    return CLASSES[family].read_config(read, family, read_sizes(read))


def family_of(config: Mapping[str, Any]) -> str | None:
    """The Hugging Face class: that of `model_type`, as in transformers, unless `architectures` names an unknown one."""
    name, kind = _named_class(config), config.get("model_type")
    if name and not (isinstance(name, str) and name in CLASSES):
        return None
    return (MODEL_TYPES.get(kind) if isinstance(kind, str) else None) or name or None


def _named_class(config: Mapping[str, Any]) -> Any:
    named = config.get("architectures")
    return named[0] if isinstance(named, list) and named else named


def _family(read: FieldReader) -> str:
    family = family_of(read.config)
    if family is None:
        what = short(_named_class(read.config) or read.config.get("model_type"))
        raise UserError(f"{read.where} has the unknown architecture {what}; known are {', '.join(CLASSES)}.")
    return family


def named_shape(name: str) -> dict[str, Any]:
    """The Hugging Face configuration of a published model, by our name or gpt-fast's; case does not matter."""
    known = ALIASES.get(name.lower(), name.lower())
    if known not in SHAPES:
        close = get_close_matches(known, (*SHAPES, *ALIASES), 1)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(SHAPES)}."
        raise UserError(f"There is no model shape named {name!r}; {hint}")
    shape = SHAPES[known]
    return {"architectures": [MODEL_TYPES[shape["model_type"]]], **shape}


def find_shape(path: Path, arch: str | None, fits: Callable[[ModelConfig], bool]) -> dict[str, Any]:
    """The configuration of a checkpoint without config.json: the shape `arch`, else the only shape that fits."""
    if arch is not None:
        return named_shape(arch)
    fitting = [name for name in SHAPES if fits(read_config(named_shape(name), name))]
    if not fitting:
        raise UserError(f"{path} fits none of the known shapes; put its config.json beside it, or name one by arch.")
    if len(fitting) > 1:
        # The longest name of a fitting shape that is part of a folder's name.
        spellings = {**ALIASES, **dict(zip(fitting, fitting, strict=True))}
        folders = [part.lower() for part in (path if path.is_dir() else path.parent).resolve().parts]
        chosen = [n for n in sorted(spellings, key=len) if spellings[n] in fitting and any(n in f for f in folders)]
        if not chosen:
            raise UserError(f"{path} fits {', '.join(fitting)}; choose with arch (--arch NAME).")
        fitting = [spellings[chosen[-1]]]
        warnings.warn(f"{path} is taken for {fitting[0]} because of its folder's name.", GenwrightWarning, stacklevel=2)
    return named_shape(fitting[0])
