"""Files are opened once, must be regular, of a size, and are read in the encoding that they declare."""

import os
from pathlib import Path

import pytest
from fixture_cases import PROJECT

from genwright.errors import UserError
from genwright.inspect.analysis.manifest import load_manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.scenario import load_scenario
from genwright.inspect.analysis.source_files import LARGEST_SCRIPT, encoding_of, read_script
from genwright.inspect.rewrite.rewrite import rewrite


@pytest.mark.parametrize("reader", [read_script, load_manifest, load_scenario])
def test_only_regular_files_are_read(reader, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.py")
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    (tmp_path / "folder.py").mkdir()
    for name in ("fifo.py", "zero.py", "folder.py", "missing.py"):
        with pytest.raises(UserError) as told:
            reader(tmp_path / name)
        assert "\n" not in str(told.value) and name in str(told.value)


def test_a_repository_with_such_files_is_read_without_them(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.py")
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    (tmp_path / "itself.py").symlink_to("itself.py")
    (tmp_path / "good.py").write_text("x = 1")
    repository = Repository(tmp_path)
    assert [repository.module(f) for f in repository.files] == ["good"]
    with pytest.raises(UserError, match="symbolic links"):
        Repository.around(tmp_path / "itself.py").source(tmp_path / "itself.py")
    assert [f.name for f in repository.files if repository.parse(f) is not None] == ["good.py"]


def test_a_size_is_the_most_that_is_read(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text("#" * (LARGEST_SCRIPT + 1))
    with pytest.raises(UserError, match="more than 1,000,000 bytes"):
        read_script(tmp_path / "large.py")


def test_declared_encodings(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_bytes("# -*- coding: latin-1 -*-\r\nx = 'é'\r\n".encode("latin-1"))
    assert read_script(script) == "# -*- coding: latin-1 -*-\r\nx = 'é'\r\n"
    script.write_bytes(b"\xef\xbb\xbfx = 1\n")
    assert read_script(script) == "x = 1\n"
    for data in (b"x = '\xe9'\n", b"# coding: nothing\n", b"# coding: utf-8\nx = '\xe9'\n"):
        script.write_bytes(data)
        with pytest.raises(UserError, match="cannot be read"):
            read_script(script)


def test_a_rewrite_keeps_the_encoding_it_declares(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_bytes("# coding: cp1252\nfrom tinymodel import generate\ngenerate('€')\n".encode("cp1252"))
    made = rewrite(script, load_manifest(PROJECT / "tinymodel.toml"), repository=Repository(tmp_path))
    assert encoding_of(made.text) == "cp1252" and b"'\x80'" in made.text.encode(encoding_of(made.text))


def test_a_file_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    repository = Repository(tmp_path)
    tree = repository.parse(repository.files[0])
    (tmp_path / "a.py").unlink()
    assert repository.parse(repository.files[0]) is tree and repository.source(repository.files[0]) == "x = 1"
