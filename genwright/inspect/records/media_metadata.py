"""What a picture or a sound is, without keeping it: size, mode, channels, rate."""

import contextlib
import wave
from pathlib import Path
from typing import Any

from genwright.inspect.media.samples import SUFFIXES


def media_metadata(path: Path) -> dict[str, Any]:
    """`{"media": {...}}` for a picture or a WAV file; nothing for anything else."""
    suffix = path.suffix.lower()
    with contextlib.suppress(Exception):  # a file that only has the name of one
        if suffix in SUFFIXES["image"]:
            from PIL import Image

            with Image.open(path) as picture:
                return {"media": {"kind": "image", "format": picture.format, **picture_metadata(picture)}}
        if suffix == ".wav":
            with wave.open(str(path)) as sound:
                rate, frames = sound.getframerate(), sound.getnframes()
                told = {"channels": sound.getnchannels(), "rate": rate, "seconds": round(frames / rate, 3)}
                return {"media": {"kind": "audio", **told}}
    return {}


def picture_metadata(picture: Any) -> dict[str, Any]:
    """A PIL image's size and mode."""
    return {"mode": picture.mode, "width": picture.width, "height": picture.height}
