"""A wrapped function records its calls, but not while torch compiles it."""

import sys
import types

import pytest

from genwright.inspect.wrappers import wrap


def test_an_interface_of_torch_itself_is_wrapped_while_torch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = types.ModuleType("torch")  # not complete yet
    monkeypatch.setitem(sys.modules, "torch", torch)
    wrapped = wrap(lambda: "compiled", lambda: "recorded")
    compiling = [False, True]
    torch.compiler = types.SimpleNamespace(is_compiling=lambda: compiling.pop(0))  # type: ignore[attr-defined]
    assert [wrapped(), wrapped()] == ["recorded", "compiled"]
