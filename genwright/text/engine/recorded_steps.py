"""RecordingExecutor: records the kernel calls of a decoding step on a CPU, and repeats them for steps of its shape."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from genwright.kernels.cpu.calls import Recording
from genwright.kernels.cpu.rows import record_gather, record_widening
from genwright.text.engine.executor import ResidentExecutor
from genwright.text.loader import Model
from genwright.text.ops.cpu_ops import CpuOps
from genwright.text.ops.protocol import Weights
from genwright.text.ops.step import Chunk, Step

MAX_TOKENS = 8  # of a step; larger ones spend little of their time outside the kernels
ALLOCATIONS = ("empty", "new_empty", "empty_like")


class RecordingExecutor(ResidentExecutor):
    """One recording for each number of sequences, tokens and logits; other steps run op by op.

    The whole step is then one call into C++. A step that needs an op without a kernel is not recorded.
    """

    ops: CpuOps

    def __init__(
        self,
        model: Model,
        ops: CpuOps,
        pages: int,
        max_batch: int,
        max_tokens: int,
        mtp: Weights | None = None,
        cache_bits: int | None = None,
    ):
        super().__init__(model, ops, pages, max_batch, max_tokens, mtp, cache_bits)
        # By sequences, tokens and logits per sequence; None for steps that cannot be recorded.
        self._recorded: dict[tuple[int, int, int], tuple[Recording, torch.Tensor] | None] = {}

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk], known: torch.Tensor | None = None) -> torch.Tensor:
        queries, wanted = len(chunks[0].tokens), chunks[0].logits
        same = all(len(chunk.tokens) == queries and chunk.logits == wanted for chunk in chunks)
        if not same or len(chunks) * queries > MAX_TOKENS or self.mtp is not None:
            return super().run(chunks, known)
        layout = self.buffers.write(chunks, known=known)
        shape = len(chunks), queries, wanted
        if shape not in self._recorded:
            logits, self._recorded[shape] = self._record(self.buffers.view(layout))
            return logits
        recorded = self._recorded[shape]
        if recorded is None:
            return self.forward(self.buffers.view(layout))
        recording, logits = recorded
        recording.replay()
        return logits

    def _record(self, step: Step) -> tuple[torch.Tensor, tuple[Recording, torch.Tensor] | None]:
        """Run a step and record it, if all its work is done by kernels."""
        recording = Recording()
        watch = _Watch(recording)
        self.ops.recording = recording
        try:
            with watch:
                logits = self.forward(step)
        finally:
            self.ops.recording = None
        return logits, None if watch.missed else (recording, logits)


class _Watch(TorchDispatchMode):
    """Records the copies that torch makes of a step's tensors, and notices any other work of torch."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch would import its compiler at the first op, to keep it out of this class; that takes over a second."""
        return False

    def __init__(self, recording: Recording):
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = recording
        self.missed: list[str] = []  # ops that were not recorded

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        harmless = name in ALLOCATIONS or (not func._schema.is_mutable and _is_view(result, args))
        if not harmless and not self._record(name, args, result):
            self.missed.append(name)
        return result

    def _record(self, name: str, args: tuple[Any, ...], result: Any) -> bool:
        if name == "embedding":
            return record_gather(self.recording, args[0], args[1], result)
        if name == "index" and len(args[1]) == 1:
            return record_gather(self.recording, args[0], args[1][0], result)
        return name in ("to", "_to_copy") and record_widening(self.recording, args[0], result)


def _is_view(result: Any, args: tuple[Any, ...]) -> bool:
    """Whether a result, or each of several, has the memory of the first argument."""
    results = result if isinstance(result, list | tuple) else [result]
    tensors = [*results, args[0]] if args else results
    if not args or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        return False
    return all(each.untyped_storage().data_ptr() == args[0].untyped_storage().data_ptr() for each in results)
