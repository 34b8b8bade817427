"""Files that appear during a call, and what pictures and sounds are told by."""

import mmap
import wave
from pathlib import Path

import pytest
from PIL import Image

from genwright.inspect.records.media_metadata import media_metadata
from genwright.inspect.records.new_files import NewFiles
from genwright.inspect.records.peak_memory import PeakMemory


def test_new_files_are_found_once_and_the_runs_own_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, here = tmp_path / "run", tmp_path / "here"
    run.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    files = NewFiles(run)
    (here / "old.txt").touch()
    before = files.listing()
    for path in (run / "a.txt", run / "run.json", here / "b.txt"):
        path.touch()
    assert files.since(before) == [run / "a.txt", here / "b.txt"]
    assert files.since(files.listing()) == []


def test_media_are_told_by_their_metadata(tmp_path: Path) -> None:
    Image.new("RGB", (4, 3)).save(tmp_path / "a.png")
    with wave.open(str(tmp_path / "a.wav"), "wb") as sound:
        sound.setnchannels(2)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(4 * 4000))
    (tmp_path / "broken.png").write_text("no picture")
    picture = {"kind": "image", "format": "PNG", "mode": "RGB", "width": 4, "height": 3}
    assert media_metadata(tmp_path / "a.png") == {"media": picture}
    assert media_metadata(tmp_path / "a.wav") == {
        "media": {"kind": "audio", "channels": 2, "rate": 8000, "seconds": 0.5}
    }
    assert media_metadata(tmp_path / "broken.png") == {} and media_metadata(tmp_path / "a.txt") == {}


def test_the_peak_is_that_of_the_call() -> None:
    memory = PeakMemory()
    memory.start()
    with mmap.mmap(-1, 64 << 20) as block:  # which the system gets back at once, unlike memory of malloc
        block.write(b"x" * len(block))
        large = memory.stop()
    memory.start()
    assert memory.stop() < large - (32 << 20)
