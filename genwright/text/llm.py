"""LLM: a text model, ready to answer."""

import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from genwright.device import pick_device
from genwright.errors import UserError
from genwright.text.build import build_engine, open_model
from genwright.text.config_file import plain, short, token_ids
from genwright.text.engine.request import Piece, Request, Result, SamplingParams
from genwright.text.generation_config import recommended_sampling
from genwright.text.ops.step import Chunk
from genwright.text.settings import EngineConfig
from genwright.text.tokenizer.tokenizer import Tokenizer

Prompt = str | Sequence[int]
_DECIDING = ("kv", "deterministic", "max_context", "draft", "speculate_k")  # settings that can change the tokens
_NO_ROOM = "The cache has no room for {} tokens beside the requests that are running."


class LLM:
    """Opens a checkpoint (a path, a name that `genwright pull` lists, or `random:NAME`) and runs requests on it."""

    def __init__(
        self,
        model: str | Path,
        config: EngineConfig | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
        **settings: Any,
    ):
        """The settings of EngineConfig are keywords here too, and go over those of `config`."""
        if not isinstance(config, EngineConfig | None):
            raise UserError(
                f"config must be an EngineConfig, not {short(config)}; settings are keywords: device='cpu'."
            )
        self.config = (config or EngineConfig()).with_settings(settings)
        device = pick_device(self.config.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # kernels are compiled for the current device, and run on its streams
        checkpoint = open_model(model, self.config)
        self.tokenizer = checkpoint.tokenizer()
        if self.config.chat_template is not None:
            self._needs_tokenizer().use_template(self.config.chat_template)
        self._generation_config = checkpoint.generation_config()
        self.eos_ids = frozenset(
            checkpoint.config.eos_ids
            + self._generation_config.ids("eos_token_id")
            + (self.tokenizer.eos_ids if self.tokenizer else ())
        )
        self.engine = build_engine(checkpoint, self.config, device, progress)
        self.model, self.max_context = self.engine.executor.model, self.engine.max_context

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        callback: Callable[[Piece], bool | None] | None = None,
    ) -> list[Result]:
        """One result per prompt, in order; `callback` sees every piece and cancels its request by returning False."""
        each = _as_list(prompts)
        given: list[Any] = list(params) if isinstance(params, list | tuple) else [params] * len(each)
        if len(given) != len(each):
            raise UserError(
                f"There are {len(each)} prompts and {len(given)} SamplingParams; give one for all, or one each."
            )
        requests = [self.requests(prompt, p, index) for index, (prompt, p) in enumerate(zip(each, given, strict=True))]
        for request, piece in self.follow([sample for samples in requests for sample in samples]):
            if (piece.ids or piece.text) and callback is not None and callback(piece) is False:
                request.finish("cancelled")
        return [gather(samples) for samples in requests]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Piece]:
        """The answer to one prompt, piece by piece; closing the iterator cancels the request."""
        for _, piece in self.follow(self.requests(prompt, params)):
            if piece.ids or piece.text:
                yield piece

    def chat(
        self, messages: list[dict[str, Any]], params: SamplingParams | None = None, allow_control_tokens: bool = False
    ) -> Result:
        """The assistant's next message, by the model's own chat template; see `encode_chat`."""
        return self.generate([self.encode_chat(messages, allow_control_tokens)], params)[0]

    def encode_chat(self, messages: list[dict[str, Any]], allow_control_tokens: bool = False) -> list[int]:
        """The token ids of a conversation; a control token that a message spells is ordinary text unless allowed."""
        return self._needs_tokenizer().chat(messages, allow_control_tokens)

    def recommended_params(self, **given: Any) -> SamplingParams:
        """The sampling parameters that the checkpoint recommends, those `given` over them."""
        return SamplingParams(**{**recommended_sampling(self._generation_config), **given})

    def logits(self, prompt: Prompt) -> torch.Tensor:
        """The logits after every token, [tokens, vocab] in float32."""
        ids = self._encode(prompt)
        self.engine.check(ids)
        self.engine.settle()
        pool = self.engine.pool
        pages = pool.start(ids[:1])
        if pages is None:
            raise UserError(_NO_ROOM.format(len(ids)))
        rows = []
        try:
            for start in range(0, len(ids), most := self.engine.scheduler.max_tokens):
                chunk = ids[start : start + most]
                if not pool.extend(pages, start + len(chunk)):
                    raise UserError(_NO_ROOM.format(len(ids)))
                rows.append(self.engine.executor.run([Chunk(chunk, start, pages.tables(), True)]))
                pages.length += len(chunk)
                pool.share(pages, ids)  # frees pages that windows have passed
        finally:
            pool.release(pages)
        return torch.cat(rows)

    @property
    def fingerprint(self) -> str:
        """The same only for models and settings that give the same tokens, but for rounding."""
        template = self.tokenizer.chat_template if self.tokenizer else None
        settings = [getattr(self.config, name) for name in _DECIDING]
        return repr((self.model.fingerprint, settings, sorted(self.eos_ids), template))

    def requests(self, prompt: Prompt, params: SamplingParams | None, index: int = 0) -> list[Request]:
        """A prompt's n requests, for the engine to take."""
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise UserError(f"The sampling parameters must be SamplingParams, not {short(params)}.")
        ids = self._encode(prompt)
        seed = secrets.randbits(63) if params.seed is None else params.seed
        return [
            Request(ids, params, seed, self.eos_ids, self.tokenizer.stream() if self.tokenizer else None, index, sample)
            for sample in range(params.n)
        ]

    def follow(self, requests: list[Request]) -> Generator[tuple[Request, Piece], None, None]:
        """Run these requests beside others; a piece for each after every step, maybe empty; leaving early cancels."""
        live = dict.fromkeys(requests)
        try:
            for request in requests:
                self.engine.submit(request)
            while live:
                self.engine.step()
                for request in list(live):
                    if request.finish_reason is not None:
                        del live[request]
                    yield request, request.take()
        finally:
            self.engine.cancel(requests)

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self._needs_tokenizer().encode(prompt)
        return token_ids(prompt, "A prompt must be text or a list of token ids")

    def _needs_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise UserError("This checkpoint has no tokenizer, so prompts must be token ids.")
        return self.tokenizer


def _as_list(prompts: Any) -> list[Prompt]:
    """A bare text or list of ids is one prompt."""
    given = plain(prompts)
    single = not isinstance(given, list | tuple) or (given and not isinstance(plain(given[0]), str | Sequence))
    return [given] if single else list(given)


def gather(samples: list[Request]) -> Result:
    """A prompt's first sample, with the others inside it."""
    first, *rest = (request.result() for request in samples)
    return replace(first, samples=rest)
