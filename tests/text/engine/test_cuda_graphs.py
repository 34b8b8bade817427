"""GraphExecutor on the triton backend of an emulated GPU, with stand-ins for CUDA graphs."""

from collections.abc import Callable

import pytest
import torch
from kernels.products import EMULATED
from text.engine.test_emulated_gpu import LATENT

from genwright.text.checkpoints import random
from genwright.text.engine.cuda_graphs import GraphExecutor
from genwright.text.engine.executor import ResidentExecutor
from genwright.text.loader import Loader
from genwright.text.ops.step import Chunk
from genwright.text.ops.triton_ops import TritonOps

pytestmark = pytest.mark.skipif(not EMULATED, reason="test_cuda_graphs_gpu.py has real graphs")


class Replay:
    """Runs the same work again as a CUDA graph does: nothing that was there before its recording is computed anew."""

    def __init__(self, work: Callable[[], torch.Tensor]):
        self.work, self.result = work, work()

    @torch.inference_mode()
    def replay(self) -> None:
        self.result.copy_(self.work())


def record(work: Callable[[], torch.Tensor]) -> tuple[Replay, torch.Tensor]:
    graph = Replay(work)
    return graph, graph.result


def test_a_graph_of_several_tokens_per_sequence_reads_the_pages_of_its_own_step(cuda_device, monkeypatch):
    """Deterministic latent attention makes each token a sequence, with a page table and a length."""
    shape = random.named_shape
    monkeypatch.setattr(random, "named_shape", lambda name: {**shape(name), **LATENT, "num_hidden_layers": 1})
    device = torch.device(cuda_device)
    ops = TritonOps(device, deterministic=True)
    ops._pdl = False  # Triton's interpreter does not have it
    model = Loader(random.RandomWeights("random:deepseek-v2-lite"), torch.float32, device).model(128)
    with_graphs = GraphExecutor(model, ops, 6, 2, 32, max_graph_tokens=32)
    monkeypatch.setattr(with_graphs, "record", record)
    without = ResidentExecutor(model, ops, 6, 2, 32)
    texts = [[5, 6, 7, 8, 9, 10, 11], [200, 3, 7]]
    for pages in ([1, 2], [4, 3]):  # the second step has other lengths and pages than the one that was captured
        assert torch.equal(last_logits(with_graphs, texts, pages), last_logits(without, texts, pages))
        texts = [texts[1], [*texts[0], 12, 13]]
    assert list(with_graphs._graphs) == [(2, 2, 2)]


def last_logits(executor: ResidentExecutor, texts: list[list[int]], pages: list[int]) -> torch.Tensor:
    """The logits of each text's last two tokens, which are one step after that of the others."""
    tables = [[[page]] for page in pages]
    executor.run([Chunk(text[:-2], 0, table) for text, table in zip(texts, tables, strict=True)])
    last = [Chunk(text[-2:], len(text) - 2, table, 2) for text, table in zip(texts, tables, strict=True)]
    return executor.run(last).clone()
