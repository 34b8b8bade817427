import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated

import pytest

from genwright.arguments import setting
from genwright.cli.app import new_app
from genwright.cli.flags import SHOW_DEFAULTS, expand
from genwright.errors import UserError


@dataclass(frozen=True)
class Settings:
    steps: int = setting(40, "Steps.")
    ts: tuple[int, ...] | None = setting(None, "Time steps.", commas=True)
    mult: tuple[float, ...] = setting((1, 2), "Factors.", commas=True)
    clip: bool = setting(True, "Clip.")
    hidden: int = 3  # no help, so no flag


@pytest.fixture
def run():
    """Runs a command with flags of Settings; returns what the command gets."""

    def command(kind, *arguments):
        got, app = [], new_app()

        @app.command()
        @expand
        def show(settings: kind) -> None:
            got.append(settings)

        app(list(arguments), standalone_mode=False)
        return got[0] if got else None

    return command


def test_a_dataclass_is_filled_from_flags(run):
    assert run(Settings) == Settings()
    assert run(Settings, "--steps", "3", "--ts", "0,2", "--mult", "1.5", "--no-clip") == Settings(
        3, (0, 2), (1.5,), False
    )


def test_a_dict_has_only_the_flags_that_were_given(run, capsys):
    kind = Annotated[dict, Settings]
    assert run(kind) == {}
    assert run(kind, "--ts", "0,2", "--no-clip") == {"ts": (0, 2), "clip": False}
    run(Annotated[dict, Settings, SHOW_DEFAULTS], "--help")
    shown = capsys.readouterr().out
    run(Annotated[dict, Settings, frozenset({"steps"})], "--help")
    assert "--steps" not in capsys.readouterr().out
    assert "--steps" in shown and "40" in shown and "[default: 1,2]" in shown and "--hidden" not in shown


def test_a_wrong_list_is_one_sentence(run):
    with pytest.raises(UserError, match="--ts must be whole numbers joined by commas, not '0,x'"):
        run(Settings, "--ts", "0,x")


def test_help_does_not_import_torch():
    """The flags come from modules that import no torch, so that --help and completion are fast."""
    code = "import sys, genwright.cli.images; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
