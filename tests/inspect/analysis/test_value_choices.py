"""Values that nobody gave are chosen from choices, types, names and shipped files."""

from pathlib import Path

import pytest

from genwright.inspect.analysis.value_choices import TEXT, Wanted, choose, medium_of


@pytest.mark.parametrize(
    ("wanted", "value"),
    [
        (Wanted("mode", choices=("fast", "slow")), "fast"),
        (Wanted("count", "int"), 1),
        (Wanted("temperature"), 1),
        (Wanted("verbose", "bool"), False),
        (Wanted("prompt", "str"), TEXT),
        (Wanted("device", "str"), "cpu"),
        (Wanted("output_dir", "str"), "output"),
        (Wanted("target_video_path", "str"), "output.avi"),
        (Wanted("config", "str"), "config"),
    ],
)
def test_names_and_types(wanted: Wanted, value: object, tmp_path: Path) -> None:
    assert choose(wanted, tmp_path)[0] == value


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        (Wanted("face", "str", "Filepath of video/image that contains faces"), "test_image.jpg"),
        (Wanted("pdf_path"), "test_image.pdf"),
        (Wanted("infile", "str", "Input audio file."), "test_audio.wav"),
        (Wanted("input", "str", about="video"), "test_video.avi"),
        (Wanted("input_image_dir"), "test_images"),
    ],
)
def test_samples(wanted: Wanted, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENWRIGHT_HOME", str(tmp_path / "home"))
    value, reason = choose(wanted, tmp_path / "repository")
    assert Path(value).name == name and Path(value).exists() and reason.startswith("a sample")


def test_files_of_the_repository_come_first(tmp_path: Path) -> None:
    for name in ("configs/base.yaml", "other.yaml", "picture.png", "examples/cat.png", "weights/tiny.pt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert choose(Wanted("config"), tmp_path)[0] == str(tmp_path / "configs/base.yaml")
    assert choose(Wanted("image"), tmp_path)[0] == str(tmp_path / "examples/cat.png")
    assert choose(Wanted("checkpoint"), tmp_path)[0] == str(tmp_path / "weights/tiny.pt")


def test_what_a_script_is_about() -> None:
    assert medium_of("wav = load_wav(path)  # audio in, image out") == "audio"
    assert medium_of("print('hello')") == ""
