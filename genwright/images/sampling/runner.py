"""Evaluate a UNet in micro-batches of one fixed size; on a GPU, by replaying one CUDA graph.

Library kernels choose their tiling by the batch size, so the last bits of an image would depend on the number of images
in its batch. Here every evaluation has the same shape, and image i is always in row i mod micro_batch.
"""

import threading

import torch
from torch import Tensor

from genwright.errors import UserError
from genwright.images.model.unet import UNet
from genwright.kernels.cpu.amx import without_broken_amx


class Runner:
    def __init__(self, unet: UNet, micro_batch: int):
        self.unet, self.micro_batch = unet, micro_batch
        self.device = next(unet.parameters()).device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._lock = threading.Lock()  # of the graph's inputs and output, which all threads share

    @torch.no_grad()
    def __call__(self, x: Tensor, t: Tensor, labels: Tensor | None, first: int = 0) -> Tensor:
        """Evaluate the UNet for images first, first + 1, ...: x [N, 3, H, W], t [N], labels [N]."""
        lead = first % self.micro_batch
        rows = -(-(lead + len(x)) // self.micro_batch) * self.micro_batch
        # Rows without an image repeat the first or last one.
        source = (torch.arange(rows, device=self.device) - lead).clamp(0, len(x) - 1)
        outputs = []
        with without_broken_amx():
            for part in source.split(self.micro_batch):
                inputs = x[part], t[part], None if labels is None else labels[part]
                outputs.append(self._replay(*inputs) if x.is_cuda else self.unet(*inputs))
        return torch.cat(outputs)[lead : lead + len(x)]

    def _replay(self, x: Tensor, t: Tensor, labels: Tensor | None) -> Tensor:
        with self._lock:
            if self._graph is None:
                try:
                    self._capture(x, t, labels)
                except torch.OutOfMemoryError as error:
                    raise UserError(
                        f"Micro-batches of {self.micro_batch} images do not fit into GPU memory; choose a smaller size."
                    ) from error
            assert self._graph is not None
            self._x.copy_(x)
            self._t.copy_(t)
            if labels is not None:
                self._labels.copy_(labels)
            self._graph.replay()
            return self._out.clone()

    def _capture(self, x: Tensor, t: Tensor, labels: Tensor | None) -> None:
        self._x, self._t = x.clone(), t.clone()
        self._labels = torch.empty(0) if labels is None else labels.clone()
        inputs = self._x, self._t, None if labels is None else self._labels
        # Deterministic algorithms that are not chosen by timing, so that every process computes the same bits.
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self.unet(*inputs)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may allocate memory
                self._out = self.unet(*inputs)
        self._graph = graph
