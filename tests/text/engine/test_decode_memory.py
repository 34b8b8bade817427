"""What decoding needs on a GPU beside weights and cache is at most 5 % of them, in every format and for every batch.

Where there is no GPU, steps run on PyTorch's meta device: no kernel is launched and no value is stored, but tensors
have their sizes and live as long as on a GPU, and a step that waits for the device fails. Two layers of each kind are
enough, because a step needs the same memory for the others; the weights and the cache that count are whole models'.
"""

import gc
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from absent_gpu import Compilations, run_without_interpreter, use_absent_gpu
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from genwright.kernels import PAGE
from genwright.quant.formats import parse_format
from genwright.text.checkpoints.random import RandomWeights
from genwright.text.engine.executor import ResidentExecutor
from genwright.text.engine.resident_executor import resident_executor
from genwright.text.loader import Loader
from genwright.text.ops.step import Chunk, StepBuffers

# Of each shape the layers that are loaded, and formats.
CASES = {
    "llama-3.1-8b": (2, [None, "int8", "int4", "int4:asym", "fp8"]),
    "llama-2-7b": (2, ["int8", "int4"]),
    "llama-3-70b": (2, ["int4"]),
    "mixtral-8x7b": (2, ["int8", "int4"]),
    "deepseek-v2-lite": (3, [None]),
    "deepseek-v3": (5, ["fp8"]),
}
BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
LENGTH = 512  # tokens of each sequence
PROMPT = 2048  # tokens of a prompt, which is read before the sequences are decoded


class MetaMemory(TorchDispatchMode):
    """Counts the bytes of the meta device's tensors that are made within it, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self._known = set[int]()
        self.now = self.peak = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self._known:
            self._known.add(storage._cdata)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes())

    def _forget(self, storage: int, size: int) -> None:
        self._known.discard(storage)
        self.now -= size

    def forget_peak(self) -> None:
        self.peak = self.now


class GpuMemory:
    """Bytes of a GPU's tensors since it was entered, and their peak."""

    def __enter__(self) -> "GpuMemory":
        gc.collect()  # what earlier tests left
        torch.cuda.empty_cache()
        self._before = torch.cuda.memory_allocated()
        return self

    def __exit__(self, *_: object) -> None: ...

    @property
    def peak(self) -> int:
        return torch.cuda.max_memory_allocated() - self._before

    def forget_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats()


def new_executor(model: Any, ops: Any) -> ResidentExecutor:
    sizes = PROMPT // PAGE, BATCHES[-1], PROMPT
    if model.device.type == "cuda":
        return resident_executor(model, ops, *sizes, graph=True)
    ops.unpack_ahead(model.blocks, model.device)
    return ResidentExecutor(
        model, ops, *sizes
    )  # no graphs without a GPU; each captures a step that has run without one


def check(name: str, layers: int, quant: str | None, device: torch.device, deterministic: bool = False) -> None:
    from genwright.text.ops.triton_ops import TritonOps

    form = None if quant is None else parse_format(quant)
    whole, loader = (
        Loader(RandomWeights(f"random:{name}{cut}"), torch.bfloat16, device, quant=form)
        for cut in ("", f",layers={layers}")
    )
    with GpuMemory() if device.type == "cuda" else MetaMemory() as memory:
        executor = new_executor(loader.model(loader.checkpoint.config.max_context), TritonOps(device, deterministic))
        cache = [tensor for layer in executor.cache.layers for tensor in layer.rows.values()]
        loaded = loader.total_bytes() + sum(tensor.nbytes for tensor in cache)
        tables = [list(range(PROMPT // PAGE))] * len(executor.buffers.slots)
        for _ in range(2):  # the second time, weights are dequantized ahead
            executor.run([Chunk([5] * PROMPT, 0, tables)])
        logits = []  # of all batch sizes, as their graphs keep them
        for batch in BATCHES:
            memory.forget_peak()
            logits.append(executor.run([Chunk([5], LENGTH - 1, tables)] * batch))
            further = memory.peak - loaded
            spec = whole.cache_spec()
            needed = whole.total_bytes() + batch * spec.pages_of(LENGTH, 1) * spec.page_bytes
            mode = "deterministic, " * deterministic
            print(f"{name} {quant or 'bf16'}, {mode}batch {batch}: {further / 1e6:,.0f} MB, {further / needed:.2%}")
            assert 0 < further < 0.05 * needed


@pytest.mark.skipif(torch.cuda.is_available(), reason="measured, not counted")
@pytest.mark.parametrize("name", CASES)
def test_the_memory_of_steps_on_an_absent_gpu(name: str, tmp_path: Path) -> None:
    run_without_interpreter(__file__, name, tmp_path)


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "quant"), [(name, quant) for name, (_, quants) in CASES.items() for quant in quants])
def test_the_memory_of_steps(name: str, quant: str | None) -> None:
    check(name, CASES[name][0], quant, torch.device("cuda"))


if __name__ == "__main__":
    Compilations(use_absent_gpu())
    StepBuffers._send = lambda *_: None  # the meta device has no values
    layers, quants = CASES[sys.argv[1]]
    for quant, deterministic in [*((quant, False) for quant in quants), (quants[0], True)]:
        check(sys.argv[1], layers, quant, torch.device("meta"), deterministic)
