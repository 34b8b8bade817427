"""Small sample media that stand in for a script's placeholder paths, made on first use."""

import io
import math
import os
import struct
import wave
from pathlib import Path

SAMPLES = {"image": "images/test_image", "audio": "audios/test_audio.wav", "video": "videos/test_video.avi"}
FOLDERS = {"image": "images/test_images", "audio": "audios/test_audios", "video": "videos/test_videos"}
IMAGE_SUFFIXES = (".jpg", ".png", ".bmp", ".gif", ".webp", ".tiff")
_SIDE, _FRAMES = 64, 8


def sample_folder() -> Path:
    """The folder with the samples, made when it is not there yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = Path(os.environ.get("GENWRIGHT_RESOURCES", cache / "genwright" / "resources")).absolute()
    for name, content in _contents() if not (folder / "complete").exists() else ():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        partial.write_bytes(content)
        partial.replace(path)
    return folder


def _contents() -> list[tuple[str, bytes]]:
    pictures = [(f"images/test_image{suffix}", _picture(0, suffix)) for suffix in IMAGE_SUFFIXES]
    pictures += [(f"images/test_images/{i}.png", _picture(i, ".png")) for i in range(3)]
    sounds = [
        ("audios/test_audio.wav", _tone(440)),
        *((f"audios/test_audios/{i}.wav", _tone(220 * (i + 1))) for i in range(3)),
    ]
    video = _motion_jpeg([_picture(i, ".jpg") for i in range(_FRAMES)])
    videos = [("videos/test_video.avi", video), ("videos/test_videos/0.avi", video)]
    return [*pictures, *sounds, *videos, ("complete", b"")]


def _picture(step: int, suffix: str) -> bytes:
    """A gradient with a disc that moves with `step`."""
    from PIL import Image, ImageDraw

    image = Image.linear_gradient("L").resize((_SIDE, _SIDE)).convert("RGB")
    left = 8 + 4 * step
    ImageDraw.Draw(image).ellipse((left, 16, left + 24, 40), fill=(220, 80, 40))
    file = io.BytesIO()
    image.save(file, {".jpg": "JPEG", ".tiff": "TIFF"}.get(suffix, suffix[1:].upper()))
    return file.getvalue()


def _tone(frequency: int, seconds: float = 1.0, rate: int = 16000) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        steps = range(int(seconds * rate))
        values = (round(12000 * math.sin(2 * math.pi * frequency * t / rate)) for t in steps)
        sound.writeframes(b"".join(struct.pack("<h", v) for v in values))
    return file.getvalue()


def _motion_jpeg(frames: list[bytes], rate: int = 8) -> bytes:
    """JPEG pictures in an AVI container, which OpenCV, ffmpeg and players read without a codec of their own."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)

    def listed(kind: bytes, *parts: bytes) -> bytes:
        return chunk(b"LIST", kind + b"".join(parts))

    largest = max(map(len, frames))
    header = struct.pack(
        "<14I", 1_000_000 // rate, largest * rate, 0, 0x10, len(frames), 0, 1, largest, _SIDE, _SIDE, *[0] * 4
    )
    stream = struct.pack(
        "<4s4sIHHIIIIIIII4H", b"vids", b"MJPG", 0, 0, 0, 0, 1, rate, 0, len(frames), largest, 0, 0, 0, 0, _SIDE, _SIDE
    )
    form = struct.pack("<IiiHH4sIiiII", 40, _SIDE, _SIDE, 1, 24, b"MJPG", _SIDE * _SIDE * 3, 0, 0, 0, 0)
    head = listed(b"hdrl", chunk(b"avih", header), listed(b"strl", chunk(b"strh", stream), chunk(b"strf", form)))
    movie = listed(b"movi", *(chunk(b"00dc", f) for f in frames))
    index, offset = b"", 4
    for frame in frames:
        index += struct.pack("<4sIII", b"00dc", 0x10, offset, len(frame))
        offset += 8 + len(frame) + len(frame) % 2
    return chunk(b"RIFF", b"AVI " + head + movie + chunk(b"idx1", index))
