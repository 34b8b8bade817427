"""What a run is shown: never the home folder as a whole, and the script's files also without an overlay."""

import sys
from pathlib import Path

import pytest

from genwright.inspect.isolation import overlay
from genwright.inspect.isolation.overlay import (
    link_files,
    mount_point,
    outside,
    plan_mounts,
    python_folders,
    remove_scaffold,
)


def test_interpreter_and_package_are_shown() -> None:
    shown = set(python_folders())
    assert {Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent} <= shown
    assert Path(overlay.__file__).parents[3] in shown


def test_a_path_that_contains_the_home_folder_is_shown_only_if_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, project, folder = tmp_path / "users" / "me", tmp_path / "users" / "me" / "project", tmp_path / "record"
    for path in (project, folder):
        path.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(sys, "path", [*sys.path, str(home.parent)])
    for readable, kinds in (((), ["private"]), ((home,), ["private", "read"])):
        mounts = plan_mounts(folder, project, project, readable, network=False)
        assert [each.kind for each in mounts if each.target == str(home)] == kinds
        assert not [each for each in mounts if each.target == str(home.parent)]
        assert [each.upper for each in mounts if each.target == str(project)] == [str(folder / "work")]
        depths = [len(Path(each.target).parts) for each in mounts]
        assert depths == sorted(depths)


def test_links_and_their_removal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script_folder, folder = tmp_path / "scripts", tmp_path / "scripts" / "records" / "run-0001"
    work = folder / "work"
    work.mkdir(parents=True)
    for name in ("a/b/c", "d"):
        (script_folder / name).mkdir(parents=True)
    (script_folder / "a" / "file").write_text("text")
    monkeypatch.setattr(overlay, "LINKS", 3)
    link_files(script_folder, work)
    assert (work / "a" / "file").read_text() == "text" and not (work / "a").is_symlink()
    assert (work / "a" / "b").is_symlink()  # beyond the number of entries that are looked at
    assert not (work / "records").exists()  # where the run itself is
    (work / "a" / "new").write_text("new")
    remove_scaffold(folder, [], script_folder)
    assert [path.relative_to(work) for path in sorted(work.rglob("*"))] == [Path("a"), Path("a/new")]


def test_paths() -> None:
    assert outside(Path("/r"), Path("/tmp/x")) == Path("/r/outside/tmp/x")
    assert mount_point(r"36 35 98:0 / /mnt/two\040words rw shared:1 - ext3 /dev/root rw") == "/mnt/two words"
