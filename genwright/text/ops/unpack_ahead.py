"""UnpackAhead: dequantizes the next weight on a second stream while cuBLAS multiplies the current one."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from genwright.kernels.compile_ahead import dry_run_compiler
from genwright.kernels.triton.unpack import unpack
from genwright.quant.mixed import Mixed
from genwright.quant.packed import Packed
from genwright.text.ops.protocol import Weights


@dataclass
class _Buffer:
    """Memory for one dequantized weight."""

    free: torch.cuda.Event = field(default_factory=lambda: torch.cuda.Event())  # the product that read it has ended
    ready: torch.cuda.Event = field(default_factory=lambda: torch.cuda.Event())  # the weight is dequantized
    memory: Tensor | None = None

    def matrix(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """[rows, columns] of the memory, which grows to the largest weight."""
        size = shape[0] * shape[1]
        if self.memory is None or self.memory.dtype != dtype or len(self.memory) < size:
            self.memory = None  # first, so that the new memory can be where the old one was
            self.memory = torch.empty(size, dtype=dtype, device=device)
        return self.memory[:size].view(shape)


class UnpackAhead:
    """Computes products with dequantized weights of resident models.

    cuBLAS leaves multiprocessors idle, above all while its last tiles are computed, and a few are enough to dequantize
    at the memory's rate. The kernel that does it becomes ready when the product starts, so it gets those that are left.
    Steps use weights in the same order, so the next weight is the one that followed last time; a wrong guess costs time
    but changes nothing. The weights must not change, so those that are streamed from another memory do not take part.
    """

    def __init__(self, device: torch.device):
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._layer: dict[int, int] = {}  # of each weight that takes part, by its id
        self._following: dict[int, Packed] = {}  # the weight that was multiplied after each one
        self._last: Packed | None = None
        self._ahead: tuple[Packed, Tensor, int] | None = None  # a weight, its matrix, and the buffer that has it
        self._buffers = _Buffer(), _Buffer()

    def add(self, blocks: Sequence[Weights]) -> None:
        """Let a model's weights take part, which stay where they are as long as this object is used."""
        for layer, weights in enumerate(blocks):
            self._layer |= {id(weight): layer for weight in _parts(weights.values())}

    def __contains__(self, weight: Packed) -> bool:
        return id(weight) in self._layer

    def multiply(self, weight: Packed, dtype: torch.dtype, product: Callable[[Tensor], Tensor]) -> Tensor:
        """Launch `product` of the dequantized weight, then the dequantization of the next one."""
        layer = self._layer.get(id(weight))
        # A graph has its own order, and a dry run dequantizes nothing.
        if layer is None or torch.cuda.is_current_stream_capturing() or dry_run_compiler() is not None:
            return product(unpack(weight, dtype))
        stream = torch.cuda.current_stream(self._device)
        matrix, used = self._take(weight, dtype, stream)
        following, buffer = self._next(weight, layer), self._buffers[1 - used]
        if following is None:
            y = product(matrix)
            self._give_back(stream)
            return y
        buffer.free.record(stream)  # its last product comes before this one
        y = product(matrix)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(buffer.free)
            try:
                matrix = buffer.matrix(following.shape, dtype, self._device)
            except torch.OutOfMemoryError:  # the weight can still be dequantized when it is needed
                return y
            unpack(following, dtype, matrix)
            buffer.ready.record(self._stream)
        self._ahead = following, matrix, 1 - used
        return y

    def _give_back(self, stream: torch.cuda.Stream) -> None:
        """Free the buffers at the end of a step, because the steps that follow may need the memory for something else.

        It is the second stream's memory, so that stream must know of all products that read it.
        """
        for buffer in self._buffers:
            if buffer.memory is not None:
                buffer.free.record(stream)
                self._stream.wait_event(buffer.free)
                buffer.memory = None

    def _take(self, weight: Packed, dtype: torch.dtype, stream: torch.cuda.Stream) -> tuple[Tensor, int]:
        """The dequantized weight, and the number of the buffer that must not be written meanwhile."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] is not weight or ahead[1].dtype != dtype:
            return unpack(weight, dtype), 1  # in memory of its own
        stream.wait_event(self._buffers[ahead[2]].ready)
        return ahead[1:]

    def _next(self, weight: Packed, layer: int) -> Packed | None:
        """The weight that probably comes next in this step."""
        if self._last is not None:
            self._following[id(self._last)] = weight
        self._last = weight
        following = self._following.get(id(weight))
        # After the last layer, the next step begins, which may come much later or need no dequantized weight.
        return None if following is None or self._layer[id(following)] < layer else following


def _parts(weights: Iterable[object]) -> Iterable[Packed]:
    """The packed weights, and those that a mixed one consists of."""
    for weight in weights:
        if isinstance(weight, Mixed):
            yield from weight.parts
        elif isinstance(weight, Packed):
            yield weight
