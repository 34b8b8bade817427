"""Placeholders are found, typed and replaced by samples that are what they say; outputs are named."""

import ast
import io
import wave
from pathlib import Path

import pytest
from fixture_cases import CASES
from PIL import Image

from genwright.inspect.analysis.analyse import analyse
from genwright.inspect.analysis.cli_options import CommandLine, Option
from genwright.inspect.analysis.dataflow import Flow
from genwright.inspect.analysis.manifest import parse_manifest
from genwright.inspect.analysis.outputs import find_outputs, output_variables
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.resources import Resource, by_kind
from genwright.inspect.media.samples import sample_folder


def found(source: str, folder: Path) -> list[Resource]:
    script = folder / "script.py"
    script.write_text(source)
    manifest = parse_manifest({"project": "p", "interface": [{"name": "caption", "signature": "(source, n=1)"}]}, "")
    return analyse(source, script, manifest, Repository(folder)).resources


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # Opened, by flow: through a variable, a parameter, a container, a default, an option, an attribute, a Path.
        ('import cv2\nimage = "path/to/image.jpg"\ncv2.imread(image)', ("image", False, "images/test_image.jpg")),
        ('from PIL import Image\nImage.open("/path/to/photo.PNG")', ("image", False, "images/test_image.png")),
        ('def f(p="path/to/scan.tif"): return open(p)', ("image", False, "images/test_image.tiff")),
        ('import librosa\nfor a in ["your_audio.wav"]: librosa.load(a)', ("audio", False, "audios/test_audio.wav")),
        ('import cv2\nc = {"v": "path/to/your/clip.mp4"}\ncv2.VideoCapture(c["v"])',
         ("video", False, "videos/test_video.mp4")),
        ('import os\nimage_dir = "path/to/data"\nos.listdir(image_dir)', ("image", True, "images/test_images")),
        ('import os\nfor r in os.walk("path/to/images/"): pass', ("image", True, "images/test_images")),
        ('p.add_argument("--audio-folder", default="path/to/folder")\na = p.parse_args()\nimport os\n'
         "os.listdir(a.audio_folder)", ("audio", True, "audios/test_audios")),
        ('import click\n@click.option("--image", default="path/to/a.gif")\ndef f(image): open(image, "rb")',
         ("image", False, "images/test_image.gif")),
        ('import typer\ndef f(image: str = typer.Option("path/to/a.bmp")): open(image)',
         ("image", False, "images/test_image.bmp")),
        ('class A:\n    image = "<image path>"\n    def f(self): open(self.image)',
         ("image", False, "images/test_image.jpg")),
        ('from pathlib import Path\nPath("path/to/paper.pdf").read_bytes()', ("pdf", False, "images/test_image.pdf")),
        ('import soundfile\nsoundfile.read("/path/to/your/file")', ("audio", False, "audios/test_audio.wav")),
        # By the callee's signature: a repository's own function, or a keyword of a library's.
        ('from reader import read\nread("path/to/image.jpg")', ("image", False, "images/test_image.jpg")),
        ('from lib import f\nf(video_path="path/to/your/video")', ("video", False, "videos/test_video.avi")),
        # By extension: what an interface or a library's function is given.
        ('caption("path/to/image.webp")', ("image", False, "images/test_image.webp")),
        ('from lib import Model\nModel().run("path/to/image.jpg")', ("image", False, "images/test_image.jpg")),
    ],
)  # fmt: skip
def test_placeholders_that_are_opened(source: str, expected: tuple[str, bool, str], tmp_path: Path) -> None:
    (tmp_path / "reader.py").write_text("def read(file, mode=None): ...\n")
    assert [(r.kind, r.folder, r.sample) for r in found(source, tmp_path)] == [expected]


@pytest.mark.parametrize(
    "source",
    [
        'caption("Describe your favourite picture in detail")',
        'caption("What is in [this image]? Put the path/to/image.jpg here")',
        'd = {"path/to/image.jpg": 1}; open(list(d)[0])',
        'p.add_argument("--image", help="path/to/image.jpg")',
        'system = "You describe <image> and <video> for your user"; chat(system)',
        'image = "path/to/image.jpg"',
        'image = "path/to/image.jpg"; print(image); open("other.txt")',
        'if x == "path/to/image.jpg": open(x)',
        'out = "path/to/image.jpg"; import cv2; cv2.imwrite(out, 1)',
        'both = "path/to/image.jpg"; open(both); open(both, "w")',
        'import os; os.path.join("path/to", "your_image.jpg"); os.path.basename("path/to/image.jpg")',
        'open("path/to/model.pth")',
        'open("path/to/weights")',
        'open("assets/cat.jpg")',
        'open("https://host/path/to/image.jpg")',
        'open("path/to/there.jpg")',
        '"""See path/to/image.jpg."""',
        'open(f"path/to/{name}.jpg")',
        'match x:\n    case "path/to/image.jpg": open(x)',
        'import logging; logging.getLogger().info("path/to/image.jpg")',
        'class T:\n    def f(self): self.assertEqual(g(), "path/to/image.jpg")',
        'raise ValueError("path/to/image.jpg")',
        'from lib import Image; Image(label="path/to/image.jpg")',
    ],
)
def test_what_opens_no_file_stays(source: str, tmp_path: Path) -> None:
    (tmp_path / "path" / "to").mkdir(parents=True)
    (tmp_path / "path" / "to" / "there.jpg").touch()
    assert found(source, tmp_path) == []


def test_a_resource_tells_what_opens_it(tmp_path: Path) -> None:
    (resource,) = found('import cv2\nimage = "path/to/image.jpg"\n\ncv2.imread(image)\n', tmp_path)
    told = resource.to_dict()
    assert (told["reason"], told["opened_by"], told["line"]) == ("opened", "cv2.imread (line 4)", 2)


def test_the_traces_form() -> None:
    resources = next(c for c in CASES if c.name == "media_paths").rewrite().samples.resources
    assert by_kind(resources) == {"images": ["image_path", "folder"], "audios": ["voice"], "videos": []}
    assert by_kind([]) == {"images": [], "audios": [], "videos": []}


def test_samples_are_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENWRIGHT_HOME", str(tmp_path))
    folder = sample_folder()
    pictures = [p for p in (folder / "images").glob("*.*") if p.suffix != ".pdf"]
    for image in [
        *pictures,
        *(folder / "images" / "test_images").iterdir(),
        *(folder / "images").glob("*_floder/*.jpg"),
    ]:
        with Image.open(image) as opened:
            opened.load()
            assert opened.size == (64, 64) and opened.format.lower().startswith(image.suffix[1:3].lower())
    with wave.open(str(folder / "audios" / "test_audio.wav")) as sound:
        assert (sound.getnchannels(), sound.getframerate(), sound.getnframes()) == (1, 16000, 16000)
    frames = avi_frames((folder / "videos" / "test_video.avi").read_bytes())
    assert len(frames) == 8 and all(Image.open(io.BytesIO(f)).size == (64, 64) for f in frames)
    movie = (folder / "videos" / "test_video.mp4").read_bytes()
    boxes = dict(mp4_boxes(movie, 0, len(movie)))
    start, end = boxes[b"mdat"]
    assert list(boxes) == [b"ftyp", b"mdat", b"moov"] and movie[start:end] == b"".join(frames)
    # MPEG frames follow each other at the length that their header tells.
    sound = (folder / "audios" / "test_audio.mp3").read_bytes()
    assert len(sound) % 417 == 0 and all(sound[i : i + 2] == b"\xff\xfb" for i in range(0, len(sound), 417))
    page = (folder / "images" / "test_image.pdf").read_bytes()
    table = int(page.rpartition(b"startxref")[2].split()[0])
    assert page[table : table + 4] == b"xref"
    for line in page[table:].split(b"\n")[3:7]:
        assert page[int(line.split()[0]) :].split(b" ", 2)[1] == b"0"
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


def mp4_boxes(data: bytes, start: int, end: int):
    while start < end:
        size = int.from_bytes(data[start : start + 4], "big")
        yield data[start + 4 : start + 8], (start + 8, start + size)
        start += size
    assert start == end


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
