"""The bar of long commands; tests/test_readme.py and test_makefile.py run them all on a terminal."""

import shutil
import sys
from pathlib import Path

import pytest
import terminal

from genwright import cli
from genwright.cli.progress import bar

PROJECT = Path(__file__).parents[1] / "inspect" / "fixtures" / "project"


def test_a_rate_that_is_not_known_yet() -> None:
    def work() -> None:
        with bar("Title") as tell:
            for done in range(3):
                tell(done, 2)

    code, shown = terminal.call(work)
    assert code == 0
    assert "Title" in shown and "0/?" in shown and "2/2" in shown


def test_several_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(PROJECT, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(sys, "argv", ["genwright", "inspect", "locate", "class_object.py", "argparse_options.py"])
    code, shown = terminal.call(cli.main)
    assert code == 0 and "Inspecting" in shown and "argparse_options.py" in shown


def test_output_to_a_file_stays_there_while_a_bar_is_shown(tmp_path: Path) -> None:
    code = "from genwright.cli.progress import bar\nwith bar('Title') as tell: print('result')"
    shown = terminal.run("bash", "-c", f'"{sys.executable}" -c "{code}" > out.txt', cwd=tmp_path)
    assert shown.code == 0 and "Title" in shown.output and "result" not in shown.output
    assert (tmp_path / "out.txt").read_text() == "result\n"


def test_no_bar_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with bar("Title") as tell:
        tell(1, 2)
    assert capsys.readouterr() == ("", "")
