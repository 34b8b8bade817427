"""Arguments by name: as Python binds them, and as they are where it cannot."""

from typing import Any

import pytest
import torch

from genwright.inspect.run.argument_names import ArgumentNames


def plain(a: Any, b: Any = 1, *, c: Any = 2, **rest: Any) -> None: ...


def positional(a: Any, /, b: Any) -> None: ...


def starred(a: Any, *rest: Any, c: Any = 1) -> None: ...


class Net(torch.nn.Module):
    def forward(self, x: Any, scale: float = 1.0) -> None: ...


@pytest.mark.parametrize(
    ("target", "args", "kwargs", "expected"),
    [
        (plain, (1, 2), {"d": 3}, ([], {"a": 1, "b": 2, "d": 3})),
        (positional, (1, 2), {}, ([1], {"b": 2})),
        (starred, (1, 2, 3), {"c": 4}, ([1, 2, 3], {"c": 4})),
        (plain, (), {"a": 1}, ([], {"a": 1})),
        (plain, (1, 2, 3), {}, ([1, 2, 3], {})),  # a call that will fail
        (Net(), (1, 2), {}, ([], {"x": 1, "scale": 2})),
        (print, ("x",), {}, (["x"], {})),
    ],
)
def test_arguments_have_their_names(target: Any, args: tuple, kwargs: dict, expected: tuple[list, dict]) -> None:
    assert ArgumentNames().named(target, args, kwargs) == expected


def test_a_bound_method_and_its_function_are_told_apart() -> None:
    class Holder:
        def run(self, x: int) -> None: ...

    names, held = ArgumentNames(), Holder()
    assert names.named(held.run, (1,), {}) == ([], {"x": 1})
    assert names.named(Holder.run, (held, 1), {}) == ([], {"self": held, "x": 1})
