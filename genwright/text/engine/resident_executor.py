"""resident_executor: the executor of a model on one device, with CUDA graphs where its ops allow them."""

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
) -> ResidentExecutor:
    """The executor of a model on one device, with CUDA graphs where its ops allow it and `graph` is set."""
    if not ops.capturable:
        return ResidentExecutor(model, ops, pages, max_batch, max_tokens, mtp, bits, pipeline)
    from genwright.text.engine.cuda_graphs import GraphExecutor
    from genwright.text.ops.triton_ops import TritonOps

    assert isinstance(ops, TritonOps)
    ops.unpack_ahead(model.blocks, model.device)
    graph_tokens = ops.max_graph_tokens(model.cfg, model.blocks, bits) if graph else 0
    return GraphExecutor(model, ops, pages, max_batch, max_tokens, mtp, bits, pipeline, graph_tokens)
