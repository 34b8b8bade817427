"""The logger: its files, means, levels, and the values of several ranks."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from genwright.errors import UserError


@pytest.fixture
def logger(monkeypatch: pytest.MonkeyPatch):
    from cm import logger

    for name in ("CURRENT", "DEFAULT"):
        monkeypatch.setattr(logger.Logger, name, None)
    return logger


def test_values_go_to_every_format(logger, tmp_path: Path, capsys) -> None:
    logger.configure(str(tmp_path), ["stdout", "log", "json", "csv"])
    logger.logkv("step", 1)
    logger.logkv_mean("loss", 2.0)
    logger.logkv_mean("loss", 4.0)
    assert logger.getkvs()["loss"] == 3.0
    assert logger.dumpkvs() == {"step": 1, "loss": 3.0}
    logger.logkvs({"step": 2, "a_key_that_is_longer_than_thirty": 0.5})
    logger.dumpkvs()
    table = "-------------------\n| loss | 3        |\n| step | 1        |\n-------------------\n"
    assert table in (tmp_path / "log.txt").read_text() and table in capsys.readouterr().out
    assert "| a_key_that_is_longer_than_t... | 0.5      |" in (tmp_path / "log.txt").read_text()
    rows = [json.loads(line) for line in (tmp_path / "progress.json").read_text().splitlines()]
    assert rows[0] == {"step": 1, "loss": 3.0}
    expected = "loss,step,a_key_that_is_longer_than_thirty\n3.0,1,\n,2,0.5\n"
    assert (tmp_path / "progress.csv").read_text() == expected


def test_levels_and_scopes(logger, tmp_path: Path, capsys) -> None:
    logger.configure(str(tmp_path / "a"), ["stdout"])
    logger.debug("not", "this")
    logger.warn("this", 1)
    logger.set_level(40)
    logger.info("nor this")
    logger.error("that")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == ["this 1", "that"]
    with logger.scoped_configure(str(tmp_path / "b"), ["log"]):
        assert logger.get_dir() == str(tmp_path / "b")
    assert logger.get_dir() == str(tmp_path / "a")
    logger.profile("work")(lambda: None)()
    assert logger.getkvs()["wait_work"] > 0


def test_folder_and_formats_come_from_the_environment(logger, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_LOGDIR", str(tmp_path))
    monkeypatch.setenv("OPENAI_LOG_FORMAT", "json")
    logger.log("configured by its first use")
    assert [path.name for path in tmp_path.iterdir()] == ["progress.json"]
    for launcher in ({"RANK": "1", "WORLD_SIZE": "2"}, {"PMI_RANK": "2", "PMI_SIZE": "3"}):
        with monkeypatch.context() as environment:
            for name, value in launcher.items():
                environment.setenv(name, value)
            logger.configure()
    assert {path.name for path in tmp_path.iterdir()} == {"progress.json", "log-rank001.txt", "log-rank002.txt"}


def test_values_of_ranks_are_averaged_by_their_counts(logger, tmp_path: Path) -> None:
    others = {"loss": (1.0, 3), "only_there": (5.0, 1)}
    comm = SimpleNamespace(rank=0, gather=lambda mine: [mine, others])
    logger.configure(str(tmp_path), ["csv"], comm)
    logger.logkv_mean("loss", 5.0)
    assert logger.dumpkvs() == {"loss": 2.0, "only_there": 5.0}


def test_mistakes_are_one_sentence(logger, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match="The log format must be"):
        logger.configure(str(tmp_path), ["xml"])
    with pytest.raises(UserError, match="tensorboard needs the package tensorboard"):
        logger.configure(str(tmp_path), ["tensorboard"])
