"""LLM: loads a text model and generates text with it."""

import asyncio
import secrets
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

import torch

from genwright.arguments import short
from genwright.errors import UserError
from genwright.text.build import build_engine, check_parts, open_model, settle_offload
from genwright.text.checkpoints.protocol import Checkpoint
from genwright.text.config_file import token_ids
from genwright.text.engine.engine import Engine
from genwright.text.engine.grammar import Grammars
from genwright.text.engine.loop import Delivery, EngineLoop, only_ends, receive, unpack
from genwright.text.engine.request import Piece, Request, Result, SamplingParams
from genwright.text.engine.run_report import RunMeter
from genwright.text.engine.streamed import StreamedExecutor
from genwright.text.generation_config import recommended_sampling
from genwright.text.prompts import Prompt, as_list
from genwright.text.settings import EngineConfig
from genwright.text.tokenizer.tokenizer import Tokenizer
from genwright.text.tool_chat import encode_chat, shown_tokens, style_of, with_calls, with_tools
from genwright.text.worker import follow_rank_0, meet_ranks, rank_device

_FINGERPRINTED = ("kv", "deterministic", "max_context")  # settings that can change the tokens


class LLM:
    """Loads a checkpoint (a path, a name that `genwright pull` lists, or `random:NAME`) and runs requests on it.

    Any number of threads and asyncio tasks may call it; their requests run together on one thread of the engine. That
    thread ends with `close()`, after a `with` block, or when the LLM is garbage collected.
    """

    def __init__(
        self,
        model: str | Path,
        config: EngineConfig | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
        tell: Callable[[str], None] = lambda sentence: None,
        **settings: Any,
    ):
        """The keywords are settings of EngineConfig; they override those of `config`.

        `progress` gets the number of tensors that are loaded, and of all; `tell` gets sentences about the placement.
        """
        if not isinstance(config, EngineConfig | None):
            raise UserError(
                f"config must be an EngineConfig, not {short(config)}; settings are keywords: device='cpu'."
            )
        self.config = (config or EngineConfig()).with_settings(settings)
        follow_rank_0(self.config)
        checkpoint = open_model(model, self.config)
        check_parts(checkpoint, self.config)
        device = rank_device(self.config.device)
        self.config, self.planned = settle_offload(checkpoint, self.config, device, tell)
        self.tokenizer = checkpoint.tokenizer()
        if self.config.chat_template is not None:
            self._needs_tokenizer().use_template(self.config.chat_template)
        self._generation_config = checkpoint.generation_config()
        self.eos_ids = frozenset(
            checkpoint.config.eos_ids
            + self._generation_config.ids("eos_token_id")
            + (self.tokenizer.eos_ids if self.tokenizer else ())
        )
        self._grammars = Grammars(self.tokenizer, checkpoint.config.vocab_size, sorted(self.eos_ids))
        self.loop = EngineLoop(self._build(str(model), checkpoint, device, progress), device)
        self.model, self.max_context = self.engine.executor.model, self.engine.max_context
        weakref.finalize(self, self.loop.close)  # also when the interpreter exits

    def _build(
        self, model: str, checkpoint: Checkpoint, device: torch.device, progress: Callable[[int, int], None]
    ) -> Engine:
        if self.config.layout.ranks == 1:
            return build_engine(checkpoint, self.config, device, progress)
        ranks = meet_ranks(self.config)
        try:
            with ranks.guard():
                told = {"model": model, "config": self.config.as_json(), "eos_ids": sorted(self.eos_ids)}
                ranks.broadcast(told)
                return build_engine(checkpoint, self.config, device, progress, ranks)
        except BaseException:
            ranks.close()
            raise

    @property
    def engine(self) -> Engine:
        """The engine; while requests run, only the loop's thread may use it (`loop.call`)."""
        return self.loop.engine

    def meter(self) -> RunMeter | None:
        """Measures a run from now on, if the model is placed in several tiers; its `report` ends the run."""
        executor, planned = self.engine.executor, self.planned
        if not isinstance(executor, StreamedExecutor):
            return None
        if planned is None:
            return RunMeter(executor)
        return RunMeter(executor, planned.predict, planned.machine.rates.to_device)

    def close(self) -> None:
        """Cancel what runs and end the engine's thread; later calls raise a UserError."""
        self.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        callback: Callable[[Piece], bool | None] | None = None,
    ) -> list[Result]:
        """One result per prompt, in order; `callback` gets every piece and may return False to cancel the request."""
        each = self._all_requests(prompts, params)
        received: dict[Request, tuple[int, int]] = {}  # ids and characters that the callback was given
        cancelled: dict[Request, tuple[int, int]] = {}  # the same, when it returned False
        with closing(self.follow([r for samples in each for r in samples], whole=callback is None)) as pieces:
            for request, piece in pieces:
                if callback is None or request in cancelled or not (piece.ids or piece.text):
                    continue
                ids, characters = received.get(request, (0, 0))
                received[request] = ids + len(piece.ids), characters + len(piece.text)
                if callback(piece) is False and piece.finish_reason is None:
                    cancelled[request] = received[request]
                    self.loop.cancel([request])
        return [gather([r.result().cut(cancelled.get(r)) for r in samples]) for samples in each]

    async def agenerate(
        self, prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[Result]:
        """`generate` for asyncio; cancelling the task cancels the requests."""
        each = self._all_requests(prompts, params)
        async with aclosing(self._afollow([r for samples in each for r in samples], whole=True)) as pieces:
            async for _ in pieces:
                pass
        return [gather([request.result() for request in samples]) for samples in each]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[Piece]:
        """The answer to one prompt, piece by piece; closing the iterator cancels the request."""
        with closing(self.follow(self.requests(prompt, params))) as pieces:
            for _, piece in pieces:
                if piece.ids or piece.text or piece.finish_reason:
                    yield piece

    async def astream(self, prompt: Prompt, params: SamplingParams | None = None) -> AsyncIterator[Piece]:
        """`stream` for asyncio; leaving the loop, or cancelling the task, cancels the request."""
        async with aclosing(self._afollow(self.requests(prompt, params))) as pieces:
            async for _, piece in pieces:
                if piece.ids or piece.text or piece.finish_reason:
                    yield piece

    def chat(
        self,
        messages: list[dict[str, Any]],
        params: SamplingParams | None = None,
        allow_control_tokens: bool = False,
        tools: list[dict[str, Any]] | None = None,
        tool_choice: Any = "auto",
    ) -> Result:
        """The assistant's next message, with the model's chat template; see `encode_chat` and `tool_params`."""
        tools = None if tool_choice == "none" else tools
        params = self.tool_params(SamplingParams() if params is None else params, tools, tool_choice)
        result = self.generate([self.encode_chat(messages, allow_control_tokens, tools)], params)[0]
        return with_calls(result, self.tool_style, tools) if tools else result

    def encode_chat(
        self, messages: list[dict[str, Any]], allow_control_tokens: bool = False, tools: Any = None
    ) -> list[int]:
        """The token ids of a conversation; control tokens in a message are encoded as plain text unless allowed.

        tools are functions as in OpenAI's API, which the answer may call.
        """
        return encode_chat(self._needs_tokenizer(), messages, allow_control_tokens, tools)

    @property
    def tool_style(self) -> str:
        """How the model writes tool calls, for `ToolParser`."""
        return style_of(self._needs_tokenizer())

    def tool_params(
        self, params: SamplingParams, tools: Any, tool_choice: Any = "auto", parallel: bool = True
    ) -> SamplingParams:
        """Parameters with a grammar of answers whose tool calls are right; see `tool_grammar`."""
        if not tools and tool_choice in ("auto", "none"):
            return params
        return with_tools(params, tools, tool_choice, parallel, self._needs_tokenizer(), self._grammars.new)

    def recommended_params(self, **given: Any) -> SamplingParams:
        """The checkpoint's recommended sampling parameters, overridden by those `given`."""
        return SamplingParams(**{**recommended_sampling(self._generation_config), **given})

    def logits(self, prompt: Prompt) -> torch.Tensor:
        """The logits after every token, [tokens, vocab] in float32."""
        ids = self._encode(prompt)
        self.engine.check(ids)
        return self.loop.call(partial(self.engine.logits, ids))

    def embed(self, prompts: Prompt | Sequence[Prompt], pooling: str = "mean") -> torch.Tensor:
        """One vector of length 1 per prompt, [prompts, dim] in float32, pooled from its final hidden states.

        `pooling` is mean, over all tokens, or last, as models that were trained for embeddings have it.
        """
        each = [self._encode(prompt) for prompt in as_list(prompts)]
        if not each:
            return torch.empty(0, self.model.cfg.dim)
        return torch.stack([self.loop.call(partial(self.engine.embed, ids, pooling)) for ids in each])

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
        made = []
        for sample in range(params.n):
            stream = self.tokenizer.stream(shown_tokens(self.tokenizer)) if self.tokenizer else None
            grammar = self._grammars.new(params)
            made.append(Request(ids, params, seed, self.eos_ids, stream, index, sample, grammar))
        return made

    def _all_requests(self, prompts: Any, params: Any) -> list[list[Request]]:
        """The requests of each prompt; `params` are for all prompts, or a list with one for each."""
        each = as_list(prompts)
        given: list[Any] = list(params) if isinstance(params, list | tuple) else [params] * len(each)
        if len(given) != len(each):
            raise UserError(
                f"There are {len(each)} prompts but {len(given)} SamplingParams; pass one for all, or one for each."
            )
        return [self.requests(prompt, p, index) for index, (prompt, p) in enumerate(zip(each, given, strict=True))]

    def follow(self, requests: list[Request], whole: bool = False) -> Generator[tuple[Request, Piece], None, None]:
        """Run requests and yield their pieces; with `whole` only each one's last piece. Closing it cancels them."""
        deliveries: SimpleQueue[Delivery] = SimpleQueue()
        running = len(requests)
        try:
            self.loop.submit(requests, only_ends(deliveries.put) if whole else deliveries.put)
            while running:
                for request, piece in receive(deliveries):
                    running -= piece.finish_reason is not None
                    yield request, piece
        finally:
            if running:
                self.loop.cancel(requests)

    async def _afollow(
        self, requests: list[Request], whole: bool = False
    ) -> AsyncGenerator[tuple[Request, Piece], None]:
        """`follow` for asyncio."""
        deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
        events = asyncio.get_running_loop()

        def put(delivery: Delivery) -> None:
            events.call_soon_threadsafe(deliveries.put_nowait, delivery)

        running = len(requests)
        try:
            self.loop.submit(requests, only_ends(put) if whole else put)
            while running:
                for request, piece in unpack(await deliveries.get()):
                    running -= piece.finish_reason is not None
                    yield request, piece
        finally:
            if running:
                self.loop.cancel(requests)

    def _encode(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self._needs_tokenizer().encode(prompt)
        return token_ids(prompt, "A prompt must be text or a list of token ids")

    def _needs_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise UserError("This checkpoint has no tokenizer, so prompts must be token ids.")
        return self.tokenizer


def gather(samples: list[Result]) -> Result:
    """The result of a prompt's first sample, with the other samples inside it."""
    return replace(samples[0], samples=samples[1:])
