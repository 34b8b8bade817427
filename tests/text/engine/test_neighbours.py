"""A request's tokens are those it has alone, whatever its neighbours ask for."""

import random
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from text.cache.invariants import available
from text.engine.mixes import Sort, answer, random_sorts, run_alone, run_mix
from text.engine.setup import engine_of
from text.families import make

from genwright import LLM
from genwright.kernels import PAGE
from genwright.text.drafts.draft_model import DraftModel
from genwright.text.drafts.prompt_lookup import PromptLookup
from genwright.text.drafts.proposal_length import StepCost
from genwright.text.drafts.speculation import Speculation
from genwright.text.engine.engine import Engine
from genwright.text.engine.executor import ResidentExecutor
from genwright.text.engine.request import Request
from genwright.text.engine.sampler import Sampler
from genwright.text.ops.cpu_ops import CpuOps

VOCAB = 199
PAGES = {False: 64, True: 4}  # enough for all, and so few that requests are pre-empted


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> LLM:
    folder = tmp_path_factory.mktemp("llama")
    make("llama", folder)
    return LLM(folder, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def sorts(tiny) -> list[Sort]:
    """Every kind of request, with the answer it gives alone."""
    kinds = random_sorts(80, VOCAB, seed=1)
    run_alone(engine_of(tiny, 64, max_batch=1, deterministic=True), kinds)
    return kinds


def cpu_engine(llm: LLM, rng: random.Random, deterministic: bool) -> Engine:
    max_batch, max_tokens = rng.choice((2, 4, 8)), rng.choice((20, 64))
    drafts: list[Callable[[], Speculation | None]] = [
        lambda: None,
        lambda: Speculation(PromptLookup(torch.device("cpu")), 4, StepCost(0.02)),
        lambda: Speculation(_draft_model(llm, max_batch, max_tokens), 3, StepCost(0.02)),
    ]
    pages, steps_ahead = PAGES[rng.random() < 0.4], rng.choice((0, 1))
    settings = {"speculation": rng.choice(drafts)(), "steps_ahead": steps_ahead}
    return engine_of(llm, pages, max_batch, max_tokens, deterministic, **settings)


def _draft_model(llm: LLM, max_batch: int, max_tokens: int) -> DraftModel:
    """The model itself without deterministic mode, with a cost that makes proposals worth trying."""
    executor = ResidentExecutor(llm.model, CpuOps(False), 16, max_batch, max_tokens)
    draft = DraftModel(executor, llm.model, max_tokens, llm.max_context)
    draft.cost = 0.1
    return draft


def test_random_mixes_of_neighbours_change_no_tokens(tiny, sorts, full_size):
    happened = Counter[str]()
    for seed in range(1000 if full_size else 60):
        rng = random.Random(seed)
        engine = cpu_engine(tiny, rng, deterministic=True)
        happened += Counter(run_mix(engine, rng.sample(sorts, rng.randint(2, 9)), rng))
        assert available(engine.pool) == engine.pool.cache.pages
    assert min(happened[what] for what in ("preempted", "cancelled", "accepted")) > 0, happened


class Recorder:
    """Keeps the logits that a token was last drawn from, by request and position."""

    def __init__(self, sampler: Sampler):
        self.sampler, self.rows = sampler, dict[tuple[Request, int], torch.Tensor]()
        self._sample = sampler.sample

    def __call__(self, logits, requests, positions, before=None, masks=None) -> torch.Tensor:
        self.rows.update(zip(zip(requests, positions, strict=True), logits.clone(), strict=True))
        return self._sample(logits, requests, positions, before, masks)

    def check(self) -> None:
        """Every token is the one that the torch form draws, with a state made from the tokens before it."""
        drawn = [(r, p) for r, p in self.rows if p < len(r.tokens)]
        truth = Sampler(self.sampler.vocab, self.sampler.device, fused=False)
        views = [_until(request, position) for request, position in drawn]
        tokens = truth.sample(torch.stack([self.rows[key] for key in drawn]), views, [p for _, p in drawn]).tolist()
        assert tokens == [request.tokens[position] for request, position in drawn]
        assert all((r, p) in self.rows for r, _ in self.rows for p in range(r.prompt_tokens, len(r.tokens)))


def _until(request: Request, position: int) -> Request:
    """The request when it had that many tokens."""
    view = Request(request.tokens[: request.prompt_tokens], request.params, request.seed)
    view.ends, view.tokens = request.ends, request.tokens[:position]
    return view


def run_recorded(engine: Engine, sorts: list[Sort], rng: random.Random) -> None:
    """Run a mix in a fast mode, in which logits depend on the batch, and check each token against its own logits."""
    recorder, requests = Recorder(engine.sampler), [sort.request() for sort in sorts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.sampler, "sample", recorder)
        for request in requests:
            engine.submit(request)
            for _ in range(rng.choice((0, 0, 3))):
                engine.step()
                if engine.scheduler.running and rng.random() < 0.1:
                    engine.scheduler.preempt(engine.scheduler.running[-1])
        while engine.busy():
            engine.step()
    recorder.check()
    assert all(answer(request)[1] in ("stop", "length") for request in requests)


def test_every_token_is_the_torch_forms_of_its_logits(tiny, sorts, full_size):
    for seed in range(300 if full_size else 20):
        rng = random.Random(seed)
        run_recorded(cpu_engine(tiny, rng, deterministic=False), rng.sample(sorts, 6), rng)


TINY = "random:tinyllama-1.1b,layers=2"
GPU_VOCAB = 32_000


def on_gpu(**settings) -> LLM:
    return LLM(TINY, device="cuda", max_context=512, gpu_mem=3, max_step_tokens=64, **settings)


def forget_prefixes(engine: Engine) -> None:
    """Evict all prefixes, by one sequence that takes every page."""
    pages = engine.pool.start([0])
    assert pages is not None
    engine.pool.extend(pages, engine.pool.cache.pages * PAGE)
    engine.pool.release(pages)


@pytest.mark.gpu
def test_random_mixes_of_neighbours_change_no_tokens_on_a_gpu(full_size):
    drafts = (None, "prompt-lookup", "random:tinyllama-1.1b,layers=1")
    llms = [on_gpu(dtype="float32", deterministic=True, draft=draft) for draft in drafts]
    kinds = random_sorts(60, GPU_VOCAB, seed=2)
    run_alone(llms[0].engine, kinds)
    happened = Counter[str]()
    for seed in range(1000 if full_size else 100):
        rng, engine = random.Random(seed), llms[seed % 3].engine
        if rng.random() < 0.5:
            forget_prefixes(engine)
        happened += Counter(run_mix(engine, rng.sample(kinds, rng.randint(2, 9)), rng))
        assert available(engine.pool) == engine.pool.cache.pages
    assert min(happened[what] for what in ("preempted", "cancelled")) > 0, happened


@pytest.mark.gpu
@pytest.mark.parametrize("draft", [None, "prompt-lookup", "self:int8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_token_is_the_torch_forms_of_its_logits_on_a_gpu(dtype, draft, full_size):
    engine = on_gpu(dtype=dtype, draft=draft).engine
    kinds = random_sorts(60, GPU_VOCAB, seed=3)
    for seed in range(50 if full_size else 5):
        rng = random.Random(seed)
        run_recorded(engine, rng.sample(kinds, 6), rng)
