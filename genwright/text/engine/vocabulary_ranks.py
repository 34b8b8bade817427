"""VocabularyRanks: sampling when each rank has the logits of a part of the vocabulary."""

import math
from collections.abc import Callable

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from genwright.kernels import sampling

MOST = 1024  # candidates of each rank; with a larger top_k all logits are gathered


class VocabularyRanks:
    """Every rank draws the same tokens: from the candidates of all ranks where that is enough, else from all logits."""

    def __init__(self, group: dist.ProcessGroup, gather: Callable[[Tensor], Tensor], vocab: int, columns: int):
        self.group, self.gather, self.vocab, self.whole = group, gather, vocab, columns == vocab

    def candidates(self, logits: Tensor, settings: NDArray[np.int32] | None) -> Tensor:
        """Rows of logits [rows, vocab] from which the same token is drawn as from all; without settings, all of them.

        With top_k, or at temperature 0, only each rank's highest logits can be drawn.
        """
        if logits.shape[1] == self.vocab:
            return logits
        k = self._needed(settings)
        # On a GPU, the check for ties would wait for the device.
        if k is None or k >= logits.shape[1] or (k and logits.is_cuda):
            return self.gather(logits)
        # The argmax of equal logits is the first of them, as at temperature 0; topk has any of them, so one more shows
        # whether a logit that equals the k-th largest may be missing.
        values, ids = logits.topk(k + 1) if k else logits.max(1, keepdim=True)
        found = self.gather(values)
        if k:
            kth = found.kthvalue(found.shape[1] - k + 1, 1, keepdim=True).values
            if (found[:, k :: k + 1] >= kth).any():
                return self.gather(logits)
        ids = self.gather(ids + dist.get_rank(self.group) * logits.shape[1])
        return logits.new_full((len(logits), self.vocab), -math.inf).scatter_(1, ids, found)

    def agree(self, tokens: Tensor) -> Tensor:
        """The first rank's tokens, if each rank computed all logits: their rounding may differ between machines."""
        if self.whole:
            dist.broadcast(tokens, dist.get_global_rank(self.group, 0), self.group)
        return tokens

    def _needed(self, settings: NDArray[np.int32] | None) -> int | None:
        """The largest top_k, or 0 if all rows are greedy; None if a row may draw any token."""
        if settings is None:
            return None
        greedy = settings.view(np.float32)[:, sampling.INVERSE_TEMPERATURE] == 0
        most = int(np.where(greedy, 0, settings[:, sampling.TOP_K]).max(initial=0))
        return most if most <= MOST else None
