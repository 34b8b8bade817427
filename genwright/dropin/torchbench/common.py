"""Experiment: a figure and its target, one row of the benchmark's file; and the experiments by name."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

Run = Callable[[str], list[Any]]

all_experiments: dict[str, Run] = {}


@dataclass
class Experiment:
    """`arch` is the name of the GPU or of the processor; the benchmark's older rows are without."""

    name: str
    metric: str
    target: float | str
    actual: float | str
    dtype: str
    device: str
    arch: str | bool = ""
    is_model: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.arch, bool):
            self.is_model, self.arch = self.arch, ""


def new_experiment(**values: Any) -> Any:
    """A row in the words of the running script: its own class has the fields of its version of the benchmark."""
    kind = getattr(sys.modules["__main__"], "Experiment", Experiment)
    return kind(**{field.name: values[field.name] for field in fields(kind) if field.name in values})


def register_experiment(name: str | None = None) -> Callable[[Run], Run]:
    def register(run: Run) -> Run:
        all_experiments[name or run.__name__] = run
        return run

    return register
