"""What a run wrote: found, described, and copied where no layer caught it."""

import hashlib
from pathlib import Path

from genwright.inspect.isolation.written_files import copy_changed, stamps, written_files


def test_files_of_both_places_are_described(tmp_path: Path) -> None:
    for name, text in (("work/a/file", "inside"), ("outside/tmp/file", "outside"), ("run.json", "{}")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    inside, outside = written_files(tmp_path)
    assert inside == {
        "path": "work/a/file",
        "outside": False,
        "kept": "work/a/file",
        "size": 6,
        "sha256": hashlib.sha256(b"inside").hexdigest(),
    }
    assert (outside["path"], outside["kept"], outside["outside"]) == ("/tmp/file", "outside/tmp/file", True)


def test_changed_and_new_files_are_copied(tmp_path: Path) -> None:
    project, folder = tmp_path / "project", tmp_path / "project" / "records"
    folder.mkdir(parents=True)
    for name in ("same", "changed"):
        (project / name).write_text(name)
    before = stamps([project], folder)
    (project / "changed").write_text("changed again")
    (project / "new").write_text("new")
    (folder / "own").write_text("the run's own")
    copy_changed(before, stamps([project], folder), folder)
    assert {each["path"] for each in written_files(folder)} == {str(project / "changed"), str(project / "new")}
