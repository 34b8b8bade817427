"""LLM: a text model, ready to answer."""

import secrets
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from genwright.device import pick_device
from genwright.errors import GenwrightWarning, UserError
from genwright.kernels.cpu.amx import has_bf16
from genwright.quant.formats import Format, parse_format
from genwright.text.architectures.registry import architecture
from genwright.text.cache.budget import cache_pages, free_memory
from genwright.text.cache.layout import CacheSpec, parse_cache_format
from genwright.text.checkpoints import Checkpoint, open_checkpoint, parse_dtype
from genwright.text.checkpoints.generation_config import recommended_sampling
from genwright.text.config_file import plain, short, token_ids
from genwright.text.drafts.mtp import MTP, MtpDraft
from genwright.text.drafts.prompt_lookup import PROMPT_LOOKUP, PromptLookup
from genwright.text.drafts.speculation import Draft, DraftModel, Speculation, row_cost
from genwright.text.engine.backends import new_loop, new_runner, pick_backend
from genwright.text.engine.engine import Engine
from genwright.text.engine.executor import ResidentRunner
from genwright.text.engine.request import Piece, Request, Result, SamplingParams
from genwright.text.model import has_draft, load_draft, load_model, loaded_bytes
from genwright.text.ops.step import Chunk
from genwright.text.pull import resolve

Prompt = str | Sequence[int]
MAX_BATCH = {"cpu": 64, "cuda": 256}  # sequences in a step
MAX_GUESS = 32  # tokens ahead
KEEP = "keep"  # weights that are stored packed, as they are
SELF = "self:"  # before the format of a draft that is the model's own copy
MAX_TOKENS = {"cpu": 512, "cuda": 2048}  # tokens in a step: prompts are read in chunks of what is left

_NO_ROOM = "the cache has no room for {} tokens beside the requests that are running."


class LLM:
    """Opens a checkpoint (a path, a name that `genwright pull` lists, or `random:NAME`) and runs requests on it."""

    def __init__(
        self,
        model: str | Path,
        device: str = "auto",
        dtype: str = "auto",
        quant: str | None = None,
        kv: str = "auto",
        deterministic: bool = False,
        max_context: int | None = None,
        arch: str | None = None,
        chat_template: str | None = None,
        draft: str | Path | None = None,
        speculate_k: int = 5,
        backend: str = "auto",
        graph: bool = True,
        gpu_mem: float | None = None,
        cpu_mem: float | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ):
        checkpoint = open_checkpoint(resolve(str(model)), arch)
        drafting = _open_draft(draft, speculate_k, checkpoint)
        cfg = checkpoint.config
        where = pick_device(device)
        if where.type == "cuda":
            torch.cuda.set_device(where)  # kernels are compiled for the current device, and run on its streams
        self.tokenizer = checkpoint.tokenizer()
        if chat_template is not None:
            self._needs_tokenizer().use_template(chat_template)
        generation = checkpoint.generation_config()
        self.eos_ids = frozenset(
            cfg.eos_ids + generation.ids("eos_token_id") + (self.tokenizer.eos_ids if self.tokenizer else ())
        )
        self._generation_config = generation
        self._settings = (kv, deterministic, max_context, str(draft), speculate_k)
        both = [_plan(checkpoint, dtype, where, quant)]
        if drafting is not None:
            both.append(_plan(drafting, dtype, where, _own_format(draft)))
        mtp = str(draft) == MTP
        bits = parse_cache_format(kv)
        specs = [CacheSpec(architecture(c.config).cache_layers(c.config), kind, bits) for c, kind, *_ in both]
        specs = [spec.with_draft() if mtp else spec for spec in specs]
        weights = sum(loaded_bytes(*plan, draft=mtp) for plan in both)
        max_batch, self._max_tokens = MAX_BATCH[where.type], MAX_TOKENS[where.type]
        budget = cpu_mem if where.type == "cpu" else gpu_mem
        pages, self.max_context = cache_pages(
            specs,
            self._max_tokens,
            cfg,
            max_context,
            weights,
            free_memory(where) if budget is None else _bytes(budget),
            max_batch,
        )
        ops = pick_backend(backend, where, deterministic)

        def load(plan: _Plan, context: int, pages: int) -> ResidentRunner:
            loaded = load_model(plan.checkpoint, plan.dtype, where, context, progress, plan.packed, plan.quant)
            layer = load_draft(plan.checkpoint, loaded, plan.packed, plan.quant) if mtp else None
            return new_runner(loaded, ops, graph, pages, max_batch, self._max_tokens, layer, bits)

        runner = load(both[0], self.max_context, pages[0])
        self.model = runner.model
        speculation = None
        if draft is not None:
            guesser: Draft = MtpDraft(runner) if mtp else PromptLookup()
            if drafting is not None:
                context = min(self.max_context, drafting.config.longest_context)
                guesser = DraftModel(load(both[1], context, pages[1]), self.model, self._max_tokens, context)
            speculation = Speculation(guesser, speculate_k, row_cost(where))
        loop = new_loop(runner) if speculation is None else None
        self.engine = Engine(runner, max_batch, self._max_tokens, self.max_context, speculation, loop)

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
            for start in range(0, len(ids), self._max_tokens):
                chunk = ids[start : start + self._max_tokens]
                if not pool.extend(pages, start + len(chunk)):
                    raise UserError(_NO_ROOM.format(len(ids)))
                rows.append(self.engine.runner.run([Chunk(chunk, start, pages.tables(), True)]))
                pages.length += len(chunk)
                pool.share(pages, ids)  # frees pages that windows have passed
        finally:
            pool.release(pages)
        return torch.cat(rows)

    @property
    def fingerprint(self) -> str:
        """The same only for models and settings that give the same tokens, but for rounding."""
        template = self.tokenizer.chat_template if self.tokenizer else None
        return repr((self.model.fingerprint, self._settings, sorted(self.eos_ids), template))

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

    def _needs_tokenizer(self) -> Any:
        if self.tokenizer is None:
            raise UserError("This checkpoint has no tokenizer, so prompts must be token ids.")
        return self.tokenizer


def _open_draft(draft: str | Path | None, k: int, model: Checkpoint) -> Checkpoint | None:
    """The checkpoint of a draft model that guesses for `model`; None if no model is asked to."""
    if not 1 <= k <= MAX_GUESS:
        raise UserError(f"speculate_k should be from 1 to {MAX_GUESS}, and is {k}.")
    if str(draft) == MTP and not has_draft(model):
        raise UserError(
            "the draft 'mtp' is a multi-token-prediction layer, as DeepSeek-V3's files have, and this checkpoint has "
            "none; 'prompt-lookup' works for every model."
        )
    if draft is None or str(draft) in (PROMPT_LOOKUP, MTP):
        return None
    if _own_format(draft) is not None:
        return model
    checkpoint = open_checkpoint(resolve(str(draft)))
    theirs, ours = checkpoint.config.vocab_size, model.config.vocab_size
    if theirs != ours:
        raise UserError(
            f"the draft model {draft} has a vocabulary of {theirs} tokens and the model one of {ours}; a draft must "
            "share the model's tokenizer."
        )
    return checkpoint


def _bytes(gigabytes: float) -> int:
    if not 0 < gigabytes < 1e9:
        raise UserError(f"gpu_mem and cpu_mem should be a positive number of GB, and one is {gigabytes}.")
    return int(gigabytes * 1e9)


def _as_list(prompts: Any) -> list[Prompt]:
    """A bare text or list of ids is one prompt."""
    given = plain(prompts)
    single = not isinstance(given, list | tuple) or (given and not isinstance(plain(given[0]), str | Sequence))
    return [given] if single else list(given)


def gather(samples: list[Request]) -> Result:
    """A prompt's first sample, with the others inside it."""
    first, *rest = (request.result() for request in samples)
    return replace(first, samples=rest)


class _Plan(NamedTuple):
    """How a checkpoint is to be loaded."""

    checkpoint: Checkpoint
    dtype: torch.dtype
    packed: bool
    quant: Format | None


def _plan(checkpoint: Checkpoint, dtype: str, device: torch.device, quant: str | None) -> _Plan:
    packed = quant == KEEP or checkpoint.stays_packed
    form = None if quant in (None, KEEP) else parse_format(str(quant))
    wide = _pick_dtype(dtype, device, checkpoint)
    if quant == KEEP and checkpoint.only_widened:
        kinds, name = " and ".join(checkpoint.only_widened), str(wide).removeprefix("torch.")
        warnings.warn(
            f"{checkpoint.path} has weights in {kinds}, which cannot be kept packed yet: they are widened to {name} "
            "and take the memory of that. Quant int8 or int4 packs them anew.",
            GenwrightWarning,
            stacklevel=3,
        )
    return _Plan(checkpoint, wide, packed, form)


def _own_format(draft: str | Path | None) -> str | None:
    """The format of a draft that is the model's own copy, `self:FORMAT`; None for another model."""
    text = str(draft)
    return text.removeprefix(SELF) if text.startswith(SELF) else None


def _pick_dtype(name: str, device: torch.device, checkpoint: Checkpoint) -> torch.dtype:
    """`auto` is the stored type, but on a processor without bf16 products float32, which is faster there."""
    if name == "auto":
        stored = getattr(torch, checkpoint.config.dtype)
        return torch.float32 if device.type == "cpu" and not has_bf16() else stored
    return parse_dtype(name)
