"""A mocked interface checks its arguments, and gives a value like the recorded one or like its annotation says."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recorded_runs import write_run

from genwright.inspect.analysis.manifest import parse_manifest
from genwright.inspect.records.summary import summarise
from genwright.inspect.replay.mock import Mock
from genwright.inspect.replay.stand_in import StandIn, uninitialised


def mock(returns: str = "", signature: str = "(prompt, n=1)") -> Mock:
    entry = {"name": "generate", "module": "m", "signature": signature, "returns": returns}
    return Mock(parse_manifest({"project": "p", "interface": [entry]}, "test"))


def test_arguments_must_fit_the_signature() -> None:
    assert isinstance(mock().answer("run", "generate", ("a",), {"n": 2}), StandIn)
    with pytest.raises(TypeError, match="missing a required argument"):
        mock().answer("run", "generate", (), {})
    with pytest.raises(TypeError, match="unexpected keyword"):
        mock().answer("run", "generate", ("a",), {"temperature": 1})


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        ("str", "mock"),
        ("list[str]", ["mock"]),
        ("tuple[int, float]", (1, 1.0)),
        ("str | None", "mock"),
        ("Optional[bool]", True),
        ("None", None),
        ("dict[str, int]", {}),
    ],
)
def test_a_result_is_of_the_annotated_type(returns: str, expected: Any) -> None:
    assert mock(returns).answer("run", "generate", ("a",), {}) == expected


def test_arrays_and_streams_of_an_annotation() -> None:
    assert mock("np.ndarray").answer("run", "generate", ("a",), {}).dtype == np.float32
    assert mock("torch.Tensor").answer("run", "generate", ("a",), {}).shape == (1,)
    assert list(mock("Iterator[str]").answer("run", "generate", ("a",), {})) == ["mock"]


def test_a_result_has_the_recorded_shape(tmp_path: Path) -> None:
    value = {"images": np.ones((2, 3), "uint8"), "logits": torch.ones(1, 4).bfloat16(), "text": "hello", "pair": (1, 2)}
    run = write_run(tmp_path, [{"interface": "generate", "result": summarise(value)}])
    manifest = parse_manifest({"project": "p", "interface": [{"name": "generate", "module": "m"}]}, "test")
    made = Mock(manifest, run).answer("run", "generate", ("anything",), {})
    assert made["images"].shape == (2, 3) and made["images"].dtype == np.uint8 and not made["images"].any()
    assert made["logits"].shape == (1, 4) and made["logits"].dtype == torch.bfloat16
    assert made["text"] == "hello" and made["pair"] == (1, 2)


def test_a_stand_in_is_awaited_iterated_unpacked_and_computed_with() -> None:
    value = StandIn("model()")
    a, b, *rest = value
    first, second = value
    assert [str(x) for x in (a, b, first, second)] == ["model()[0]", "model()[1]"] * 2 and rest == []
    assert len(list(value)) == 1

    async def wait() -> list[str]:
        return [str(await value), *[str(i) async for i in value]]

    assert asyncio.run(wait()) == ["await model()", "model()[0]"]
    assert str(value.scores["x"].mean()) == "model().scores['x'].mean()" and value.to("cuda") is value
    assert isinstance(value * 2 + 1, StandIn) and isinstance(3 - value, StandIn) and float(value) == 1.0
    with value as held:
        assert held is value
    assert np.asarray(value).shape == (1,)


def test_an_object_without_its_constructor() -> None:
    class Network(torch.nn.Module):
        def __init__(self, size: int) -> None:
            raise AssertionError("the model is not there")

        def ask(self) -> str:
            return "real"

    made = uninitialised(Network, "Network", {"type": "Network", "parameters": 7})
    assert isinstance(made, Network) and made.ask() == "real" and made.eval().to("cuda") is made
    assert str(made.device) == "Network.device" and summarise(made) == {"type": "Network", "parameters": 7}
