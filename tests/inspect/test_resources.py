"""Placeholders are found, typed and replaced by samples that are what they say; outputs are named."""

import ast
import io
import wave
from pathlib import Path

import pytest
from fixture_cases import PROJECT
from PIL import Image

from genwright.inspect.flow import Flow
from genwright.inspect.options import CommandLine, Option
from genwright.inspect.outputs import find_outputs, output_variables
from genwright.inspect.resources import by_kind, find_resources
from genwright.inspect.samples import sample_folder
from genwright.inspect.scopes import Scopes


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('image = "path/to/image.jpg"', ("image", False, "images/test_image.jpg")),
        ('x = "/path/to/photo.PNG"', ("image", False, "images/test_image.png")),
        ('image = "path/to/scan.tif"', ("image", False, "images/test_image.tiff")),
        ('a = "your_audio.wav"', ("audio", False, "audios/test_audio.wav")),
        ('f(video="path/to/your/clip.mp4")', ("video", False, "videos/test_video.avi")),
        ('image_dir = "path/to/data"', ("image", True, "images/test_images")),
        ('x = "path/to/images/"', ("image", True, "images/test_images")),
        ('p.add_argument("--audio_folder", default="path/to/folder")', ("audio", True, "audios/test_audios")),
        ('image = "<image path>"', ("image", False, "images/test_image.jpg")),
        ('model = "path/to/model.pth"', None),
        ('x = "path/to/weights"', None),
        ('image = "assets/cat.jpg"', None),
        ('url = "https://host/path/to/image.jpg"', None),
        ('"""See path/to/image.jpg."""', None),
        ('x = f"path/to/{name}.jpg"', None),
        ('match x:\n    case "path/to/image.jpg": pass', None),
    ],
)
def test_placeholders(source: str, found: tuple[str, bool, str] | None) -> None:
    tree = ast.parse(source)
    resources = find_resources(tree, Scopes(tree))
    assert [(r.kind, r.folder, r.sample) for r in resources] == ([found] if found else [])


def test_the_traces_form() -> None:
    tree = ast.parse((PROJECT / "media_paths.py").read_text())
    resources = find_resources(tree, Scopes(tree))
    assert by_kind(resources) == {"images": ["image_path", "folder"], "audios": ["voice"], "videos": ["video"]}
    assert by_kind([]) == {"images": [], "audios": [], "videos": []}


def test_samples_are_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENWRIGHT_RESOURCES", str(tmp_path / "resources"))
    folder = sample_folder()
    for image in [*(folder / "images").glob("*.*"), *(folder / "images" / "test_images").iterdir()]:
        with Image.open(image) as opened:
            opened.load()
            assert opened.size == (64, 64) and opened.format.lower().startswith(image.suffix[1:3].lower())
    with wave.open(str(folder / "audios" / "test_audio.wav")) as sound:
        assert (sound.getnchannels(), sound.getframerate(), sound.getnframes()) == (1, 16000, 16000)
    frames = avi_frames((folder / "videos" / "test_video.avi").read_bytes())
    assert len(frames) == 8 and all(Image.open(io.BytesIO(f)).size == (64, 64) for f in frames)
    assert sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) < 500_000
    before = {f: f.stat().st_mtime_ns for f in folder.rglob("*")}
    assert sample_folder() == folder and before == {f: f.stat().st_mtime_ns for f in folder.rglob("*")}


def avi_frames(data: bytes) -> list[bytes]:
    """Walk the RIFF tree by the format's own rules: every chunk in its place, the index telling the truth."""

    def chunks(start: int, end: int):
        while start < end:
            size = int.from_bytes(data[start + 4 : start + 8], "little")
            yield data[start : start + 4], start + 8, start + 8 + size
            start += 8 + size + size % 2
        assert start == end

    ((kind, start, end),) = chunks(0, len(data))
    assert kind == b"RIFF" and data[start : start + 4] == b"AVI "
    parts = {data[s : s + 4] if k == b"LIST" else k: (s, e) for k, s, e in chunks(start + 4, end)}
    assert list(parts) == [b"hdrl", b"movi", b"idx1"]
    movie, index = parts[b"movi"], parts[b"idx1"]
    frames = [(s, e) for _, s, e in chunks(movie[0] + 4, movie[1])]
    for number, (s, e) in enumerate(frames):
        entry = data[index[0] + 16 * number : index[0] + 16 * number + 16]
        assert int.from_bytes(entry[8:12], "little") == s - 8 - movie[0]
        assert int.from_bytes(entry[12:], "little") == e - s
    return [data[s:e] for s, e in frames]


OUTPUTS = """
import numpy as np, os, cv2, json
from scipy.io.wavfile import write as write_wav
import torch
out_path = os.path.join("results", "x.npz")
np.savez(out_path, 1)
cv2.imwrite("./swapped.jpg", image)
write_wav(args.outfile, 24000, sound)
torch.save(model.state_dict(), f"{name}.pt")
with open("log.txt", "a") as f: json.dump({}, f)
open("input.txt"); open("data.bin", "rb")
figure.savefig(target)
model.save()
json.loads(text).save(3)
"""


def test_outputs_and_where_they_go() -> None:
    tree = ast.parse(OUTPUTS)
    options = CommandLine("argparse", (Option("outfile", ("--outfile",), default="voice.wav"),))
    found = find_outputs(Flow(tree, "", lambda _: None), options)
    assert [(o.kind, o.text, o.goes_to) for o in found] == [
        ("variable", "out_path", "os.path.join('results', 'x.npz')"),
        ("literal", "'./swapped.jpg'", "./swapped.jpg"),
        ("variable", "args.outfile", "voice.wav"),
        ("expression", "f'{name}.pt'", "f'{name}.pt'"),
        ("literal", "'log.txt'", "log.txt"),
        ("variable", "target", "target"),
    ]
    assert output_variables(found) == ["out_path", "args.outfile", "target"]
