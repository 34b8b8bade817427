"""What the tests of the GPU's product kernels share: the result in float64, and runs in threads, graphs and streams."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from genwright.kernels.cuda.fused_linear import Operand, operand
from genwright.quant.formats import parse_format

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


def check_order_of_launches(
    device: str, tokens: int, size: int, product: Callable[[Tensor, Operand, bool], Tensor]
) -> None:
    """With programmatic dependent launches a chain gives the same bits as without them, on a GPU also in a graph.

    Each product reads the one before, and its scratch is used again at once.
    """
    weights = [parse_format("int4").quantize(torch.randn(size, size, device=device) * size**-0.5) for _ in range(6)]
    x = torch.randn(tokens, size, device=device, dtype=torch.bfloat16)

    def chain(dependent: bool) -> Tensor:
        y = x
        for weight in weights:
            y = product(y, operand(weight), dependent)
        return y

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


def check_large_values_and_nan(device: str, product: Callable[[Tensor, Operand], Tensor]) -> None:
    """Huge, tiny, zero and missing numbers of one token do not reach another."""
    weight = parse_format("int4").quantize(torch.randn(64, 1024, device=device))
    x = torch.randn(9, 1024, device=device, dtype=torch.bfloat16)
    x[0] *= 1e30
    x[1] *= 1e-30
    x[2] = 0
    want = x.double() @ weight.dequantize(torch.float32).double().T
    x[3, 5] = torch.nan
    got = product(x, operand(weight))
    assert not got[2].any() and got[3].isnan().all()
    for row in (0, 1, *range(4, 9)):
        assert (got[row].double() - want[row]).norm() < 5e-3 * want[row].norm()


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
