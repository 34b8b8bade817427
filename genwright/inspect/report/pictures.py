"""Small pictures of a run's image outputs, as data URIs."""

import base64
import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from genwright.errors import UserError
from genwright.inspect.media.samples import SUFFIXES
from genwright.inspect.records.stored_runs import Call, StoredRun
from genwright.inspect.records.stored_values import load_value

_SIDE = 320
_PIXELS = 40_000_000
_BYTES = 50_000_000
_OF_A_CALL = 8
_KINDS = {*SUFFIXES["image"], ".ppm", ".pgm"}
_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")


@dataclass(frozen=True)
class Picture:
    """An image that is drawn anew, so that the page holds nothing of the original file but its look."""

    caption: str
    data: str
    call: int | None = None  # that it came out of


def call_pictures(call: Call) -> list[Picture]:
    """The images among the files that a call wrote and in its result."""
    found = [p for f in call.files if f.get("written") for p in picture_of(Path(str(f.get("path"))))]
    if call.value is not None and not found:
        # A value that cannot be read any more has no pictures.
        with contextlib.suppress(UserError):
            found += _in_value(load_value(call), "result")
    return [replace(picture, call=call.number) for picture in found[:_OF_A_CALL]]


def run_pictures(run: StoredRun) -> list[Picture]:
    """The images that the run wrote outside of calls."""
    paths = [run.path / str(f.get("kept") or f.get("path")) for f in run.data.get("files") or []]
    return [p for path in paths for p in picture_of(path)][: 4 * _OF_A_CALL]


def picture_of(path: Path) -> list[Picture]:
    """The picture of an image file, or nothing if it is none."""
    if path.suffix.lower() not in _KINDS:
        return []
    try:
        if not path.is_file() or path.stat().st_size > _BYTES:
            return []
        with Image.open(path, formats=_FORMATS) as image:
            return _drawn(image, path.name)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return []


def _drawn(image: Image.Image, caption: str) -> list[Picture]:
    if image.width * image.height > _PIXELS or not image.width * image.height:
        return []
    told = f"{caption}, {image.width} x {image.height}"
    small = image.convert("RGBA" if "A" in image.getbands() or "transparency" in image.info else "RGB")
    small.thumbnail((_SIDE, _SIDE))
    held = io.BytesIO()
    small.save(held, "PNG")
    return [Picture(told, f"data:image/png;base64,{base64.b64encode(held.getvalue()).decode()}")]


def _in_value(value: Any, caption: str) -> Iterator[Picture]:
    """Images of a result: PIL's, and uint8 arrays of the shape of one or of a batch."""
    if isinstance(value, Image.Image):
        yield from _drawn(value, caption)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value[:_OF_A_CALL]):
            yield from _in_value(item, f"{caption}[{index}]")
    elif isinstance(value, dict):
        for key, item in list(value.items())[:_OF_A_CALL]:
            yield from _in_value(item, f"{caption}[{key!r}]")
    elif str(getattr(value, "dtype", "")).removeprefix("torch.") == "uint8":
        array = value.numpy() if hasattr(value, "detach") else value
        if array.ndim == 4:
            for index, item in enumerate(array[:_OF_A_CALL]):
                yield from _in_value(item, f"{caption}[{index}]")
        elif array.ndim == 3 and array.shape[2] in (1, 3, 4):
            yield from _drawn(Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array), caption)
