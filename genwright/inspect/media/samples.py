"""Small sample media that stand in for a script's placeholder paths, made on first use."""

import io
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from genwright.home import cache_folder
from genwright.inspect.media import media_files

# The sample of each medium without its suffix, and the suffixes that there are, the usual one first.
SAMPLES = {
    "image": ("images/test_image", (".jpg", ".png", ".bmp", ".gif", ".webp", ".tiff")),
    "audio": ("audios/test_audio", (".wav", ".mp3")),
    "video": ("videos/test_video", (".avi", ".mp4")),
    "pdf": ("images/test_image", (".pdf",)),
}
# The suffixes by which a file's medium is told.
SUFFIXES = {
    "image": (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"),
    "audio": (".wav", ".mp3", ".flac", ".ogg", ".m4a", ".aac", ".opus"),
    "video": (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v"),
    "pdf": (".pdf",),
}
MEDIUM_OF = {suffix: medium for medium, suffixes in SUFFIXES.items() for suffix in suffixes}
FOLDERS = {
    "image": "images/test_images",
    "audio": "audios/test_audios",
    "video": "videos/test_videos",
    "pdf": "pdfs/test_pdfs",
}
# The folder that generated scripts read, spelt as they spell it; it holds a PDF too.
_GENERATED = "images/test_images_floder"
_SIDE, _FRAMES = 64, 8


def sample_path() -> Path:
    """The folder of the samples, whether it is there or not."""
    return cache_folder().absolute() / "resources"


def sample_folder() -> Path:
    """The folder with the samples; those that are missing are made."""
    folder = sample_path()
    for name, make in _makers().items():
        path = folder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            partial_file = path.with_name(f"{path.name}.{os.getpid()}.partial")
            partial_file.write_bytes(make())
            partial_file.replace(path)
    return folder


def _makers() -> dict[str, Callable[[], bytes]]:
    """Every sample's name, and what makes its bytes."""
    stem, suffixes = SAMPLES["image"]
    makers: dict[str, Callable[[], bytes]] = {f"{stem}{suffix}": partial(_picture, 0, suffix) for suffix in suffixes}
    for folder in (FOLDERS["image"], _GENERATED):
        makers |= {f"{folder}/{i}.jpg": partial(_picture, i, ".jpg") for i in range(1, 4)}
    makers |= {f"{FOLDERS['audio']}/{i}.wav": partial(media_files.wav, 220 * i) for i in range(1, 4)}
    makers |= {"audios/test_audio.wav": partial(media_files.wav, 440), "audios/test_audio.mp3": media_files.mp3}
    makers |= {
        f"{place}.avi": lambda: media_files.avi(_frames(), _SIDE)
        for place in ("videos/test_video", "videos/test_videos/1")
    }
    makers["videos/test_video.mp4"] = lambda: media_files.mp4(_frames(), _SIDE)
    pdf = partial(media_files.pdf, "A page to test with.")
    return makers | {"images/test_image.pdf": pdf, f"{FOLDERS['pdf']}/1.pdf": pdf, f"{_GENERATED}/test_image.pdf": pdf}


def _frames() -> list[bytes]:
    return [_picture(i, ".jpg") for i in range(_FRAMES)]


def _picture(step: int, suffix: str) -> bytes:
    """A gradient with a disc that moves with `step`."""
    from PIL import Image, ImageDraw

    image = Image.linear_gradient("L").resize((_SIDE, _SIDE)).convert("RGB")
    left = 8 + 4 * step
    ImageDraw.Draw(image).ellipse((left, 16, left + 24, 40), fill=(220, 80, 40))
    file = io.BytesIO()
    image.save(file, {".jpg": "JPEG", ".tiff": "TIFF"}.get(suffix, suffix[1:].upper()))
    return file.getvalue()
