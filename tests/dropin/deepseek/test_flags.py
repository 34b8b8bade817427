"""Every flag of DeepSeek's commands: the list is the original's, and every flag is read."""

import ast
import importlib
from pathlib import Path

import pytest
from dropin.deepseek.flags import DEFAULTS, FLAGS

CASES = [(command, flag) for command, flags in FLAGS.items() for flag in flags]


def added_flags(text: str) -> dict[str, object]:
    """The flags of a script's `add_argument` calls, and their defaults."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    found = {}
    for call in calls:
        if getattr(call.func, "attr", "") == "add_argument":
            assert isinstance(call.args[0], ast.Constant)
            given = {word.arg: ast.unparse(word.value) for word in call.keywords}
            default = False if "action" in given else given.get("default")
            found[str(call.args[0].value)] = ast.literal_eval(default) if isinstance(default, str) else default
    return found


@pytest.mark.parametrize("command", FLAGS)
def test_the_list_of_flags_is_the_originals(command: str, original: Path) -> None:
    theirs = added_flags((original / f"{command}.py").read_text())
    assert theirs == {flag: DEFAULTS.get(flag) for flag in FLAGS[command]}


@pytest.mark.parametrize(("command", "flag"), CASES)
def test_every_flag_is_read(command: str, flag: str) -> None:
    parser = importlib.import_module(command).parser()
    assert {action.option_strings[0] for action in parser._actions} == {"-h", *FLAGS[command]}
    needed = [word for each in FLAGS[command] if each not in DEFAULTS for word in (each, *FLAGS[command][each][0])]
    words, value = FLAGS[command][flag]
    name = flag[2:].replace("-", "_")
    if flag in DEFAULTS:
        assert getattr(parser.parse_args(needed), name) == DEFAULTS[flag] != value
    assert getattr(parser.parse_args([*needed, flag, *words]), name) == value
