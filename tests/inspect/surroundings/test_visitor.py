"""Which handlers are called, and how they end."""

import functools
from typing import Any

import pytest

from genwright.inspect.surroundings.visitor import Visitor, finished, handler_name, run_async


class Demo:
    def talk(self) -> None: ...

    def __call__(self) -> None: ...


def outer() -> Any:
    @functools.lru_cache
    def inner() -> None: ...

    return inner


def test_names_are_those_of_the_analysis() -> None:
    named = [Demo().talk, Demo(), outer(), functools.partial(functools.partial(Demo.talk)), lambda: None]
    names = ["Demo.talk", "Demo.__call__", "outer.inner", "Demo.talk", "test_names_are_those_of_the_analysis.<lambda>"]
    assert [handler_name(f) for f in named] == names


def test_the_named_handlers_or_all() -> None:
    handlers = [Demo().talk, outer()]
    for names, count in [(["talk"], 1), (["Demo.talk"], 1), (["alk"], 2), ([], 2), (["outer.inner", "talk"], 2)]:
        assert len(Visitor(names, {}, lambda *_: None).among(handlers)) == count


def test_handlers_run_to_their_end() -> None:
    async def waited() -> int:
        return 1

    async def streamed() -> Any:
        yield 1
        yield 2

    async def inside() -> Any:
        return run_async(waited())

    assert finished(3) == 3
    assert [finished(waited()), finished(streamed()), finished(i for i in range(3)), run_async(inside())] == [
        1,
        2,
        2,
        1,
    ]


def test_an_error_is_reported_and_the_script_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[Any] = []
    visitor = Visitor([], {"text": "mine"}, lambda *report: told.append(report))
    assert visitor.call("f", {}, lambda: 1 / 0) is None and visitor.call("g", {"a": 1}, lambda: 2) == 2
    assert told[0][0] == "f" and isinstance(told[0][3], ZeroDivisionError) and told[1] == ("g", {"a": 1}, 2, None)
    assert "the handler f raised ZeroDivisionError" in capsys.readouterr().err
    assert visitor.value("text") == "mine" and visitor.value("steps") == 1
    with visitor.visiting("page"):
        raise AttributeError("url_map")
    assert "could not be called" in capsys.readouterr().err
