"""resident_executor: the executor of a model on one device, with CUDA graphs where its ops allow them."""

import torch

from genwright.kernels import sampling
from genwright.kernels.compile_ahead import KernelCompiler
from genwright.parallel.pipeline import Pipeline
from genwright.text.engine.executor import ResidentExecutor
from genwright.text.loader import Model
from genwright.text.ops.protocol import Weights
from genwright.text.ops.torch_ops import TorchOps


def resident_executor(
    model: Model,
    ops: TorchOps,
    pages: int,
    max_batch: int,
    max_tokens: int,
    graph: bool,
    mtp: Weights | None = None,
    bits: int | None = None,
    pipeline: Pipeline | None = None,
    compiler: KernelCompiler | None = None,  # at work on kernels of the first steps
) -> ResidentExecutor:
    """The executor of a model on one device, with CUDA graphs where its ops allow it and `graph` is set."""
    if not ops.capturable:
        return ResidentExecutor(model, ops, pages, max_batch, max_tokens, mtp, bits, pipeline)
    from genwright.text.engine.cuda_graphs import GraphExecutor
    from genwright.text.ops.triton_ops import TritonOps

    assert isinstance(ops, TritonOps)
    ops.unpack_ahead(model.blocks, model.device)
    graph_tokens = ops.max_graph_tokens(model.cfg, model.blocks, bits) if graph else 0
    return GraphExecutor(model, ops, pages, max_batch, max_tokens, mtp, bits, pipeline, graph_tokens, compiler)


def compile_sampler(
    compiler: KernelCompiler, ops: TorchOps, vocab: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Start to compile the sampler, which takes longest, before anything is loaded."""
    if not ops.capturable or ops.group is not None:
        return
    from genwright.kernels.triton.sample import sample

    def draw() -> None:
        settings = torch.empty(1, sampling.WORDS, dtype=torch.int32, device=device)
        sample(torch.empty(1, vocab, dtype=dtype, device=device), settings)

    compiler.dry_run(draw)


def compile_decoding(
    compiler: KernelCompiler, ops: TorchOps, max_batch: int, max_tokens: int, bits: int | None, model: Model
) -> None:
    """Start to compile the kernels that decode a token, when the first block of a model has been loaded."""
    if len(model.blocks) > 1 or not ops.capturable or ops.group is not None:
        return
    from genwright.text.engine.cuda_graphs import GraphExecutor

    # Its own cache of one page; everything else has the sizes of the executor to come, which kernels may depend on.
    compiler.dry_run(lambda: GraphExecutor(model, ops, 1, max_batch, max_tokens, cache_bits=bits).draw_token())
