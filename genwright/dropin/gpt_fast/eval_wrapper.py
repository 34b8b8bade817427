"""GPTFastEvalWrapper: gpt-fast's modules as a model of lm-evaluation-harness; imported only if lm_eval is installed."""

import math
from typing import Any

import torch
from generate import encode_tokens, model_forward
from lm_eval.api.model import TemplateLM
from model import Transformer
from tokenizer import TokenizerInterface
from torch import Tensor

from genwright.bench.evaluate import spans
from genwright.errors import UserError


def setup_cache_padded_seq_input_pos_max_seq_length_for_prefill(
    model: Transformer, prompt: Tensor, max_new_tokens: int, max_seq_length: int | None = None
) -> tuple[Tensor, Tensor, int]:
    """The prompt [tokens] with room for new tokens behind it, its positions, and the length of the caches."""
    room = len(prompt) + max_new_tokens
    length = min(room, model.config.block_size) if max_seq_length is None else max_seq_length
    with torch.device(prompt.device):
        model.setup_caches(max_batch_size=1, max_seq_length=length)
    return (
        torch.cat([prompt, prompt.new_zeros(max_new_tokens)]),
        torch.arange(len(prompt), device=prompt.device),
        length,
    )


class GPTFastEvalWrapper(TemplateLM):
    """Likelihoods of a model's modules, one sequence at a time; a subclass may replace `_model_call`."""

    def __init__(self, model: Transformer, tokenizer: TokenizerInterface, max_seq_length: int | None = None):
        super().__init__()
        self._model, self._tokenizer = model, tokenizer
        self._device: torch.device = model.tok_embeddings.weight.device
        self._max_seq_length = min(2048, model.config.block_size) if max_seq_length is None else max_seq_length

    @property
    def eot_token_id(self) -> int:
        return self._tokenizer.eos_id()

    @property
    def max_length(self) -> int:
        return self._max_seq_length

    @property
    def max_gen_toks(self) -> int:
        return 50

    @property
    def batch_size(self) -> int:
        return 1

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def tokenizer_name(self) -> str:
        return str(self._tokenizer.model_path)

    def tok_encode(self, string: str, **_: object) -> list[int]:
        ids: list[int] = encode_tokens(self._tokenizer, string, bos=True, device="cpu").tolist()
        return ids

    def tok_decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens)

    @torch.no_grad()
    def _model_call(self, inps: Tensor) -> Tensor:
        """Logits [1, tokens, vocabulary] of token ids [1, tokens]."""
        seq, input_pos, _ = setup_cache_padded_seq_input_pos_max_seq_length_for_prefill(
            self._model, inps.squeeze(0), 1, self.max_length
        )
        return model_forward(self._model, seq[input_pos].view(1, -1), input_pos)

    def _scores(self, ids: list[int]) -> tuple[Tensor, Tensor]:
        """The log-likelihood of each token but the first, and whether it is the likeliest."""
        tokens = torch.tensor(ids, device=self.device)
        logits = self._model_call(tokens[None, :-1])[0].float()
        chosen = logits.log_softmax(dim=-1).gather(1, tokens[1:, None])[:, 0]
        return chosen, logits.argmax(dim=-1) == tokens[1:]

    def _loglikelihood_tokens(
        self, requests: list[tuple[Any, list[int], list[int]]], **_: object
    ) -> list[tuple[float, bool]]:
        """The log-likelihood of each continuation, and whether it is the greedy one; long contexts lose their start."""
        found = []
        for _, context, continuation in requests:
            chosen, greedy = self._scores([*context, *continuation][-self.max_length - 1 :])
            count = len(continuation)
            found.append((math.fsum(chosen[-count:].tolist()), bool(greedy[-count:].all())))
        return found

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of whole texts, in windows that overlap by one token; the last window is full."""
        totals = []
        for request in requests:
            ids, window = self.tok_encode(request.args[0]), self.max_length + 1
            pieces = [
                self._scores(ids[place.start : place.end])[0][place.scored - place.start - 1 :]
                for place in spans(len(ids), window, window - 1)
            ]
            totals.append(math.fsum(value for piece in pieces for value in piece.tolist()))
        return totals

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        raise UserError("A task that generates text needs the engine: run `genwright dropin gpt_fast eval`.")
