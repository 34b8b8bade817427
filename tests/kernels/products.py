"""What the tests of the GPU's product kernels share: the result in float64, and runs in threads, graphs and streams."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

EMULATED = not torch.cuda.is_available()  # CUDA kernels run on the CPU, and tests take smaller sizes
SMALL = EMULATED and not os.environ.get("GENWRIGHT_FULL_SIZE")


def in_float64(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, gate: bool, norm: Tensor | None = None, eps=1e-5
) -> Tensor:
    """residual + W norm(x) + bias, or with `gate` silu(y1) * y2 of its halves."""
    x = x.double()
    if norm is not None:
        x = x * torch.rsqrt(x.square().mean(dim=1, keepdim=True) + eps) * norm.double()
    y = x @ weight.double().T + bias.double()
    if gate:
        first, second = y.chunk(2, dim=1)
        y = first * first.sigmoid() * second
    return y if residual is None else y + residual.double()


def check_all(check: Callable[..., None], cases: Iterable[dict]) -> None:
    """Check cases on a GPU in several threads, because most of the time is that of compiling kernels."""
    with ThreadPoolExecutor(1 if EMULATED else 8) as pool:
        for each in [pool.submit(check, **case) for case in cases]:
            each.result()


def check_order_of_launches(chain: Callable[[bool], Tensor]) -> None:
    """With programmatic dependent launches a chain gives the same bits as without them, on a GPU also in a graph."""
    want = chain(False)
    assert torch.equal(chain(True), want)
    if EMULATED:
        return
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = chain(True)
    for _ in range(20):
        graph.replay()
        assert torch.equal(got, want)


def check_streams_at_once(product: Callable[[Tensor], Tensor], scratches: Sequence[Tensor]) -> None:
    """Blocks that wait for others must not keep them from starting, whatever else the GPU runs."""
    streams = [torch.cuda.Stream() for _ in scratches]
    want = product(scratches[0])
    torch.cuda.synchronize()
    found = []
    for _ in range(300):
        for stream, scratch in zip(streams, scratches, strict=True):
            with torch.cuda.stream(stream):
                found.append(product(scratch))
    torch.cuda.synchronize()
    assert all(torch.equal(each, want) for each in found)
