"""The runner's one graph, used by several threads."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import torch
from images.tiny_unet import TINY

from genwright.images.model.unet import UNet
from genwright.images.sampling.runner import Runner


class SlowGraph:
    """In place of a CUDA graph: doubles the runner's input, after other threads had their turn."""

    def __init__(self, runner: Runner):
        self.runner = runner

    def replay(self) -> None:
        time.sleep(0.001)
        self.runner._out = 2 * self.runner._x


def test_threads_take_turns_with_the_graph() -> None:
    runner = Runner(UNet(TINY), 2)
    runner._x, runner._t = torch.zeros(2, 3), torch.zeros(2)
    runner._graph = cast(Any, SlowGraph(runner))
    with ThreadPoolExecutor(4) as pool:
        inputs = [torch.full((2, 3), float(number)) for number in range(40)]
        outputs = list(pool.map(lambda x: runner._replay(x, torch.zeros(2), None), inputs))
    assert all(torch.equal(output, 2 * x) for x, output in zip(inputs, outputs, strict=True))
