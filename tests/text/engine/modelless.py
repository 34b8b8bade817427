"""An executor without a model: the next token is a checksum of all tokens of the sequence, read back from its pages."""

import random
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from genwright.kernels import PAGE
from genwright.text.cache.layout import Cache, CacheSpec, LayerSpec
from genwright.text.engine.executor import StepExecutor
from genwright.text.loader import Model
from genwright.text.ops.step import StepBuffers
from genwright.text.ops.torch_ops import TorchOps

VOCAB = 32


class ModellessExecutor(StepExecutor):
    """Raises torch.OutOfMemoryError in `refused` of the steps, before or after they write to the cache."""

    def __init__(self, pages: int, max_batch: int, max_tokens: int, max_context: int, refused: float = 0.0):
        cpu = torch.device("cpu")
        self.model = cast(Model, SimpleNamespace(cfg=SimpleNamespace(vocab_size=VOCAB), device=cpu))
        self.ops = TorchOps()
        self.cache = Cache(CacheSpec([LayerSpec({"token": (1,)})], torch.int64), pages, cpu)
        self.buffers = StepBuffers(max_tokens, max_batch, -(-max_context // PAGE), cpu)
        self._weights = torch.tensor([weight(position) for position in range(max_context + PAGE)])
        self._refused, self._rng = refused, random.Random(0)
        self.refusals = 0

    def run(self, chunks: Any, known: Tensor | None = None) -> Tensor:
        if chance := self._refused and self._rng.random() < self._refused:
            self.refusals += 1
        if chance and self._rng.random() < 0.5:
            raise torch.OutOfMemoryError("no memory for the step")
        step = self.buffers.fill(chunks, known=known)
        rows = self.cache.rows["token"].view(-1, PAGE)
        rows.view(-1)[step.slots[0]] = step.tokens
        if chance:
            raise torch.OutOfMemoryError("no memory for the logits")
        last = step.offsets[1:] - 1
        assert torch.equal(step.logit_rows, last[[bool(chunk.logits) for chunk in chunks]]) or len(step.logit_rows) == 1
        sequence = torch.searchsorted(step.offsets, step.logit_rows, right=True) - 1
        table = step.page_tables[0][sequence]
        weights = self._weights[: table.shape[1] * PAGE]
        within = torch.arange(len(weights)) < step.lengths[sequence, None]
        sums = (rows[table].flatten(1) * weights * within).sum(1)
        # Every other token has probability e^-100, which is never sampled.
        return torch.zeros(len(sums), VOCAB).scatter_(1, (sums % 1009 % VOCAB)[:, None], 100.0)


def weight(position: int) -> int:
    return position * 7919 % 1009 + 1


def expected_tokens(prompt: list[int], count: int, stops: frozenset[int]) -> list[int]:
    """The answer of at most `count` tokens that ends with the first token of `stops`."""
    total, answer = sum(token * weight(position) for position, token in enumerate(prompt)), list[int]()
    while len(answer) < count and not (answer and answer[-1] in stops):
        answer.append(total % 1009 % VOCAB)
        total += answer[-1] * weight(len(prompt) + len(answer) - 1)
    return answer
