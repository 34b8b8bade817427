"""ShardedEngine: every rank runs the same steps; rank 0 tells the others of requests and cancellations, as JSON."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch

from genwright.errors import UserError
from genwright.parallel.ranks import Ranks
from genwright.text.drafts.speculation import Speculation
from genwright.text.engine.engine import Engine
from genwright.text.engine.executor import StepExecutor
from genwright.text.engine.grammar import Grammars
from genwright.text.engine.request import Request, SamplingParams
from genwright.text.engine.vocabulary_ranks import VocabularyRanks
from genwright.text.tokenizer.tokenizer import Detokenizer

Message = dict[str, Any]


class ShardedEngine(Engine):
    """The engine of one rank; callers use that of rank 0, and the others `follow` it."""

    def __init__(
        self,
        ranks: Ranks,
        executor: StepExecutor,
        max_batch: int,
        max_tokens: int,
        max_context: int,
        speculation: Speculation | None,
        steps_ahead: int,
        vocabulary_ranks: VocabularyRanks,
    ):
        super().__init__(executor, max_batch, max_tokens, max_context, speculation, steps_ahead, vocabulary_ranks)
        self.ranks = ranks
        self._unsent: list[Message] = []  # messages that the other ranks get before the next step
        self._numbers: WeakKeyDictionary[Request, int] = WeakKeyDictionary()
        self._count = 0
        self._closed = False

    def check_request(self, request: Request) -> None:
        super().check_request(request)
        if request.params.logits_processor is not None:
            raise UserError("A logits_processor runs in one process, so it needs tp=1, ep=1 and pp=1.")

    def submit(self, request: Request) -> None:
        super().submit(request)
        if self.ranks.rank == 0:
            self._count += 1
            self._numbers[request] = self._count
            self._unsent.append({"submit": _to_json(request, self._count)})

    def cancel(self, requests: Iterable[Request]) -> None:
        requests = list(requests)
        if numbers := [self._numbers[request] for request in requests if request in self._numbers]:
            self._unsent.append({"cancel": numbers})
        super().cancel(requests)

    def step(self) -> list[Request]:
        with self.ranks.guard():
            self._tell({"step": True})
            return super().step()

    def logits(self, ids: list[int]) -> torch.Tensor:
        with self.ranks.guard():
            self._tell({"logits": ids})
            return super().logits(ids)

    def embed(self, ids: list[int], pooling: str) -> torch.Tensor:
        raise UserError("Embeddings need a model that is not divided among ranks: tp=1, ep=1 and pp=1.")

    def _give_way(self) -> None:
        self.ranks.fail(f"Rank {self.ranks.rank} ran out of memory; pass a smaller max_context.")

    def _tell(self, message: Message) -> None:
        """Send what has happened since the last step, and what to do now."""
        if self.ranks.rank == 0:
            messages, self._unsent = [*self._unsent, message], []
            self.ranks.broadcast(messages)

    def close(self) -> None:
        if self._closed or self.ranks.rank:
            return
        self._closed = True
        with suppress(UserError), self.ranks.guard():  # which raises if they have ended already
            self._tell({"end": True})
        self.ranks.close()
        super().close()

    def follow(self, detokenizer: Callable[[], Detokenizer | None], grammars: Grammars) -> None:
        """Do as rank 0 says until it ends; `detokenizer` makes one for a request with stop strings."""
        requests: WeakValueDictionary[int, Request] = WeakValueDictionary()
        while True:
            for message in self.ranks.broadcast():
                if (told := message.get("submit")) is not None:
                    request = _from_json(told, detokenizer, grammars)
                    requests[told["number"]] = request
                    self.submit(request)
                elif (numbers := message.get("cancel")) is not None:
                    self.cancel([requests[number] for number in numbers if number in requests])
                elif (ids := message.get("logits")) is not None:
                    with suppress(UserError):  # the caller on rank 0 gets it
                        super().logits(ids)
                elif "end" in message:
                    return super().close()
                else:
                    super().step()


def _to_json(request: Request, number: int) -> Message:
    params = {name: value for name, value in asdict(request.params).items() if name != "logits_processor"}
    params["logit_bias"] = list(params["logit_bias"].items())  # JSON's keys are texts
    numbers = {"number": number, "seed": request.seed, "sample": request.sample, "ends": sorted(request.ends)}
    return {**numbers, "tokens": request.tokens, "params": params}


def _from_json(told: Message, detokenizer: Callable[[], Detokenizer | None], grammars: Grammars) -> Request:
    params = told["params"]
    params = SamplingParams(**{**params, "logit_bias": {int(token): bias for token, bias in params["logit_bias"]}})
    stream = detokenizer() if params.stop else None
    own = {"detokenizer": stream, "sample": told["sample"], "grammar": grammars.new(params)}
    request = Request(told["tokens"], params, told["seed"], **own)
    request.ends = frozenset(told["ends"])
    return request
