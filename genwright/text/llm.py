"""LLM: loads a text model and generates text with it."""

import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from genwright.arguments import plain, short
from genwright.device import pick_device
from genwright.errors import UserError
from genwright.text.build import build_engine, open_model
from genwright.text.config_file import token_ids
from genwright.text.engine.request import Piece, Request, Result, SamplingParams
from genwright.text.generation_config import recommended_sampling
from genwright.text.ops.step import Chunk
from genwright.text.settings import EngineConfig
from genwright.text.tokenizer.tokenizer import Tokenizer

Prompt = str | Sequence[int]
_FINGERPRINTED = ("kv", "deterministic", "max_context", "draft", "speculate_k")  # settings that can change the tokens
_NO_ROOM = "The cache has no room for {} tokens beside the running requests."


class LLM:
    """Loads a checkpoint (a path, a name that `genwright pull` lists, or `random:NAME`) and runs requests on it."""

    def __init__(
        self,
        model: str | Path,
        config: EngineConfig | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
        **settings: Any,
    ):
        """The keywords are settings of EngineConfig; they override those of `config`."""
        if not isinstance(config, EngineConfig | None):
            raise UserError(
                f"config must be an EngineConfig, not {short(config)}; settings are keywords: device='cpu'."
            )
        self.config = (config or EngineConfig()).with_settings(settings)
        device = pick_device(self.config.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # kernels are compiled for the current device and use its streams
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
        """One result per prompt, in order; `callback` gets every piece and may return False to cancel the request."""
        each = _as_list(prompts)
        given: list[Any] = list(params) if isinstance(params, list | tuple) else [params] * len(each)
        if len(given) != len(each):
            raise UserError(
                f"There are {len(each)} prompts but {len(given)} SamplingParams; pass one for all, or one for each."
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
        """The assistant's next message, with the model's chat template; see `encode_chat`."""
        return self.generate([self.encode_chat(messages, allow_control_tokens)], params)[0]

    def encode_chat(self, messages: list[dict[str, Any]], allow_control_tokens: bool = False) -> list[int]:
        """The token ids of a conversation; control tokens in a message are encoded as plain text unless allowed."""
        return self._needs_tokenizer().chat(messages, allow_control_tokens)

    def recommended_params(self, **given: Any) -> SamplingParams:
        """The checkpoint's recommended sampling parameters, overridden by those `given`."""
        return SamplingParams(**{**recommended_sampling(self._generation_config), **given})

    def logits(self, prompt: Prompt) -> torch.Tensor:
        """The logits after every token, [tokens, vocab] in float32."""
        ids = self._encode(prompt)
        self.engine.check(ids)
        pool = self.engine.pool
        pages = pool.start(ids[:1])
        if pages is None:
            raise UserError(_NO_ROOM.format(len(ids)))
        rows = []
        try:
            for start in range(0, len(ids), max_tokens := self.engine.scheduler.max_tokens):
                chunk = ids[start : start + max_tokens]
                if not pool.extend(pages, start + len(chunk)):
                    raise UserError(_NO_ROOM.format(len(ids)))
                rows.append(self.engine.executor.run([Chunk(chunk, start, pages.tables(), len(chunk))]))
                pages.length += len(chunk)
                pool.share(pages, ids)  # frees pages that windows have passed
        finally:
            pool.release(pages)
        return torch.cat(rows)

    @property
    def fingerprint(self) -> str:
        """Models and settings with equal fingerprints generate the same tokens, apart from rounding."""
        template = self.tokenizer.chat_template if self.tokenizer else None
        settings = [getattr(self.config, name) for name in _FINGERPRINTED]
        return repr((self.model.fingerprint, settings, sorted(self.eos_ids), template))

    def requests(self, prompt: Prompt, params: SamplingParams | None, index: int = 0) -> list[Request]:
        """The `params.n` requests of a prompt, for the engine."""
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
        """Run requests and yield a piece of each after every step, which may be empty; closing it cancels them."""
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
    """Prompts as a list; a single text or list of token ids is one prompt."""
    given = plain(prompts)
    single = not isinstance(given, list | tuple) or (given and not isinstance(plain(given[0]), str | Sequence))
    return [given] if single else list(given)


def gather(samples: list[Request]) -> Result:
    """The result of a prompt's first sample, with the other samples inside it."""
    first, *rest = (request.result() for request in samples)
    return replace(first, samples=rest)
