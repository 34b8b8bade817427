"""A run without its model that trains it is told from one that fails for another reason."""

from typing import Any

import pytest
import torch

from genwright.inspect.records.plan_file import Plan
from genwright.inspect.replay.model_stand_in import line_of_training
from genwright.inspect.replay.stand_in import StandIn

PLAN = Plan("demo", "pre", "replay", "/script.py", "/script.py", [], [])


def failure(source: str, **names: Any) -> BaseException:
    with pytest.raises(Exception) as raised:
        exec(compile(source, PLAN.script, "exec"), {"torch": torch, **names})
    return raised.value


@pytest.mark.parametrize(
    "source",
    [
        "model\ntorch.optim.Adam(model.parameters())",
        "model\ntorch.optim.SGD([{'params': model.head.parameters(), 'lr': 1}])",
        "def train():\n    result.mean().backward()\ntrain()",
        "try:\n    result.mean().backward()\nexcept RuntimeError as error:\n    raise ValueError('no') from error",
        "try:\n    result.mean().backward()\nexcept RuntimeError:\n    raise ValueError('no')",
    ],
)
def test_the_line_that_trains_is_told(source: str) -> None:
    assert line_of_training(failure(source, model=StandIn("model"), result=torch.ones(2)), PLAN) == 2


@pytest.mark.parametrize(
    "source",
    [
        "torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=-1)",
        "torch.ones(2, requires_grad=True).backward()",
        "torch.cat([model.weight])",
        "raise ValueError('StandIn')",
    ],
)
def test_another_failure_is_the_scripts_own(source: str) -> None:
    assert line_of_training(failure(source, model=StandIn("model")), PLAN) is None
