"""Speculation changes only the speed: not the text, not the distribution, not the pages."""

import random

import numpy as np
import pytest
import scipy.stats
import torch
import transformers
from text.cache.invariants import available, check_pool
from text.engine.setup import check_pages, drain, engine_of, request
from text.families import make

from genwright import LLM, SamplingParams
from genwright.errors import UserError
from genwright.text.cache.pages import SequencePages
from genwright.text.drafts.draft_model import DraftModel
from genwright.text.drafts.prompt_lookup import PromptLookup
from genwright.text.drafts.speculation import Guess, Pace, Speculation, verify
from genwright.text.engine.engine import Engine
from genwright.text.engine.executor import ResidentExecutor
from genwright.text.engine.request import Acceptance, Request
from genwright.text.engine.sampler import Filters, Purpose, choose, distribution
from genwright.text.ops.torch_ops import TorchOps

GREEDY = SamplingParams(max_new_tokens=40, ignore_eos=True)
DRAFTS = ("identical", "similar", "unrelated", "prompt-lookup")


def prompts(count: int, low: int, high: int, seed: int = 0) -> list[list[int]]:
    """Of mixed lengths, each with a passage that it repeats, so that there is something to look up."""
    rng = random.Random(seed)
    texts = [[rng.randrange(3, 199) for _ in range(rng.randint(low, high))] for _ in range(count)]
    return [text + text[: len(text) // 2] for text in texts]


@pytest.fixture(scope="module")
def llms(tmp_path_factory) -> dict[str, LLM]:
    """The model, a draft with partly its weights, and one that knows nothing of it."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("identical", "similar", "unrelated")}
    model = make("llama", folders["identical"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layers.2." in name:
                parameter.mul_(0.8)
    model.save_pretrained(folders["similar"])
    make("llama-mha", folders["unrelated"])
    return {name: LLM(folder, device="cpu", dtype="float32") for name, folder in folders.items()}


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> dict[str, LLM]:
    """A model and a draft of eleven tokens, each likely anywhere, so that sampled text repeats itself."""
    llms = {}
    for name, seed in (("identical", 0), ("unrelated", 1)):
        folder = tmp_path_factory.mktemp(name)
        torch.manual_seed(seed)
        config = transformers.LlamaConfig(
            vocab_size=11,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            initializer_range=0.15,
            max_position_embeddings=128,
        )
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
        llms[name] = LLM(folder, device="cpu", dtype="float32")
    return llms


class Steady(Speculation):
    """Always proposes as many tokens as allowed, so that many are rejected."""

    def guess(self, requests, budget, reserve):
        self._paces = {r: FullPace() for r in requests}
        return super().guess(requests, budget, reserve)


class FullPace(Pace):
    def length(self, most: int, cost: float) -> int:
        return most


def draft_of(llms: dict[str, LLM], name: str, pages: int = 64, max_context: int = 512) -> DraftModel | PromptLookup:
    if name == "prompt-lookup":
        return PromptLookup()
    executor = ResidentExecutor(llms[name].model, TorchOps(), pages, 16, 64)
    return DraftModel(executor, llms["identical"].model, 64, max_context)


def speculating(llms: dict[str, LLM], name: str, k: int = 5, pages: int = 64, kind=Steady, **limits) -> Engine:
    engine = engine_of(llms["identical"], pages=pages, **limits)
    engine.speculation = kind(draft_of(llms, name), k, row_cost=0.05)
    return engine


def acceptance(requests: list[Request]) -> Acceptance:
    total = Acceptance()
    for r in requests:
        total.add(r.acceptance)
    return total


@pytest.mark.parametrize("kind", [Steady, Speculation])
@pytest.mark.parametrize("name", DRAFTS)
def test_greedy_tokens_are_those_without_a_draft(llms, name, kind):
    texts = prompts(8, 1, 120)
    plain = llms["identical"].generate(texts, GREEDY)
    engine = speculating(llms, name, kind=kind, max_tokens=150)
    requests = [request(text, GREEDY) for text in texts]
    assert drain(engine, requests, each_step=check_pages) == [r.ids for r in plain], "batched"
    assert available(engine.pool) == engine.pool.cache.pages
    total = acceptance(requests)
    assert total.drafted[0] > 0
    if name == "identical":
        assert total.accepted == total.drafted, "a model agrees with itself"
    if name == "similar":
        assert 0.3 < total.mean < 5, "the draft is right at times and wrong at times"
    alone = request(texts[0], GREEDY)
    assert drain(speculating(llms, name), [alone]) == [plain[0].ids], "alone"


def test_a_draft_model_never_reads_what_was_taken_back(llms):
    """It proposes what a new draft model without any state would propose."""
    draft = draft_of(llms, "similar")
    r = request(prompts(1, 40, 40)[0], GREEDY)
    r.pages = SequencePages([0])
    for stood, others in ((0, [9]), (2, [9]), (5, [9]), (0, []), (1, [9, 8, 7, 6]), (0, [9, 8])):
        (guess,) = draft.guess([(r, 5)])
        assert guess == draft_of(llms, "similar").guess([(r, 5)])[0]
        for token in guess.tokens[:stood] + others:
            r.add(token)


def test_accepted_tokens_come_in_one_step(llms):
    engine = speculating(llms, "identical")
    drain(engine, [request(prompts(1, 30, 30)[0], SamplingParams(max_new_tokens=37, ignore_eos=True))])
    assert engine.steps == 1 + 36 / 6, "the prompt, then five guesses and one token more each time"


OPTIONS = [
    SamplingParams(max_new_tokens=30, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3),
    SamplingParams(max_new_tokens=30, logit_bias={7: 3.0, 11: -100.0}, min_new_tokens=20),
    SamplingParams(max_new_tokens=30, stop_ids=tuple(range(0, 199, 9))),
    SamplingParams(max_new_tokens=30, stop_ids=tuple(range(0, 199, 9)), min_new_tokens=7),
    SamplingParams(max_new_tokens=1, ignore_eos=True),
    SamplingParams(max_new_tokens=2, ignore_eos=True, logprobs=3),
    SamplingParams(max_new_tokens=30, ignore_eos=True, logprobs=0, prompt_logprobs=True),
]


@pytest.mark.parametrize("name", DRAFTS)
def test_every_option_means_the_same(llms, name):
    texts = prompts(len(OPTIONS), 1, 60, seed=1)
    plain = [request(text, p) for text, p in zip(texts, OPTIONS, strict=True)]
    drain(engine_of(llms["identical"], pages=64), plain)
    quick = [request(text, p) for text, p in zip(texts, OPTIONS, strict=True)]
    drain(speculating(llms, name), quick, each_step=check_pages)
    for a, b in zip(plain, quick, strict=True):
        assert (a.output, a.finish_reason) == (b.output, b.finish_reason)
        assert [entry.id for entry in b.logprobs] == [entry.id for entry in a.logprobs]
        values = [[entry.logprob for entry in r.logprobs] for r in (a, b)]
        np.testing.assert_allclose(values[1], values[0], atol=1e-4)
        assert len(a.prompt_logprobs) == len(b.prompt_logprobs)


class Letters:
    def push(self, token: int) -> str:
        return chr(97 + token % 26)

    def end(self) -> str:
        return ""


@pytest.mark.parametrize("name", DRAFTS)
def test_stop_strings_cut_within_a_guess(llms, name):
    prompt = prompts(1, 30, 30, seed=2)[0]
    whole = Request(prompt, GREEDY, 0, detokenizer=Letters())
    drain(engine_of(llms["identical"], pages=16), [whole])
    for first in (0, 1, 7, 20):
        params = SamplingParams(max_new_tokens=40, ignore_eos=True, stop=(whole.text[first : first + 2],))
        results = []
        for engine in (engine_of(llms["identical"], pages=16), speculating(llms, name, pages=16)):
            r = Request(prompt, params, 0, detokenizer=Letters())
            drain(engine, [r], each_step=check_pages)
            results.append((r.text, r.output, r.finish_reason))
        assert results[0] == results[1]


@pytest.mark.parametrize("name", DRAFTS)
def test_the_context_ends_an_answer(llms, name):
    texts = [[5] * 500, [9] * 511, prompts(1, 330, 330)[0]]
    params = SamplingParams(max_new_tokens=1000, ignore_eos=True)
    plain, quick = ([request(text, params) for text in texts] for _ in range(2))
    assert drain(engine_of(llms["identical"], pages=64), plain) == drain(speculating(llms, name), quick)
    assert [len(r.output) for r in quick] == [12, 1, 512 - 495]


def test_a_draft_of_shorter_context_stops_guessing_there(llms):
    engine = engine_of(llms["identical"], pages=64)
    engine.speculation = Steady(draft_of(llms, "identical", max_context=80), 5, row_cost=0.05)
    r = request(prompts(1, 44, 44)[0], SamplingParams(max_new_tokens=60, ignore_eos=True))
    assert drain(engine, [r]) == [llms["identical"].generate([r.tokens[: r.prompt_tokens]], r.params)[0].ids]
    assert 0 < r.acceptance.drafted[0] < 5


@pytest.mark.parametrize("name", DRAFTS)
def test_preemption_and_few_pages_change_nothing(llms, name):
    texts = prompts(5, 40, 42, seed=5)
    params = SamplingParams(max_new_tokens=80, ignore_eos=True)
    engine = speculating(llms, name, pages=8, max_batch=8)
    engine.speculation.draft = draft_of(llms, name, pages=6)
    preempted = []
    preempt = engine.scheduler.preempt
    engine.scheduler.preempt = lambda r: (preempted.append(r), preempt(r))
    outputs = drain(engine, [request(text, params) for text in texts], each_step=check_pages)
    assert outputs == [r.ids for r in llms["identical"].generate(texts, params)]
    assert preempted


def test_cancelling_returns_every_page_of_both_models(llms):
    texts = prompts(60, 1, 200, seed=3)
    engine = speculating(llms, "similar", pages=40, max_batch=12)
    requests = [request(text, SamplingParams(max_new_tokens=20, ignore_eos=True)) for text in texts]
    rng = random.Random(4)

    def cancel_some(engine):
        check_pages(engine)
        for r in rng.sample(requests, 3):
            if rng.random() < 0.3:
                r.finish("cancelled")

    drain(engine, requests, each_step=cancel_some)
    assert {r.finish_reason for r in requests} == {"length", "cancelled"}
    assert available(engine.pool) == engine.pool.cache.pages
    draft = engine.speculation.draft
    draft.guess([])
    assert available(draft.pool) == draft.pool.cache.pages


@pytest.mark.parametrize("name", ["similar", "prompt-lookup"])
def test_only_accepted_tokens_enter_the_prefix_cache(llms, name):
    """Pages that were filled while proposals were accepted and rejected equal freshly computed ones."""
    engine = speculating(llms, name)
    first = request(prompts(1, 30, 30, seed=6)[0], SamplingParams(max_new_tokens=120, ignore_eos=True))
    drain(engine, [first], each_step=check_pages)
    again = request(first.tokens[:-20], GREEDY)
    assert drain(engine, [again])[0][:20] == first.output[-20:]
    assert again.cached_tokens == again.prompt_tokens - 1


def test_nan_ends_its_own_request_alone(llms):
    texts = prompts(2, 20, 30, seed=8)
    whole = [r.ids for r in llms["identical"].generate(texts, GREEDY)]
    engine = speculating(llms, "identical")
    run, victims = engine.executor.run, [request(text, GREEDY) for text in texts]

    def poisoned(chunks, known=None):
        logits, row = run(chunks, known).clone(), 0
        for chunk in chunks:
            if chunk.all_logits and victims[0].pages and list(chunk.tables[0]) == victims[0].pages.tables()[0]:
                logits[row + 3] = float("nan")
            row += len(chunk.tokens) if chunk.all_logits else 1
        return logits

    engine.executor.run = poisoned
    drain(engine, victims, each_step=check_pages)
    assert (victims[0].finish_reason, victims[0].output) == ("error", whole[0][:4]), "up to the row that is no number"
    assert (victims[1].finish_reason, victims[1].output) == ("length", whole[1])


def test_a_draft_that_is_not_numbers_is_left_alone(llms):
    engine = speculating(llms, "identical")
    draft = engine.speculation.draft
    run, calls = draft.executor.run, []

    def broken(chunks, known=None):
        calls.append(len(chunks))
        return torch.full_like(run(chunks, known), float("nan"))

    draft.executor.run = broken
    texts = prompts(3, 5, 20)
    assert drain(engine, [request(t, GREEDY) for t in texts]) == [
        r.ids for r in llms["identical"].generate(texts, GREEDY)
    ]
    assert len(calls) <= 3, "tried once for each request"


def test_memory_running_out_in_the_draft_gives_way(llms):
    engine = speculating(llms, "identical", max_batch=4)
    draft = engine.speculation.draft
    run, refusals = draft.executor.run, [2]

    def short_of_memory(chunks, known=None):
        if refusals[0]:
            refusals[0] -= 1
            raise torch.OutOfMemoryError("no")
        return run(chunks, known)

    draft.executor.run = short_of_memory
    texts = prompts(3, 5, 20, seed=9)
    assert drain(engine, [request(t, GREEDY) for t in texts]) == [
        r.ids for r in llms["identical"].generate(texts, GREEDY)
    ]
    assert refusals == [0]


def test_a_seed_gives_the_same_tokens_with_prompt_lookup(small):
    texts = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5][: i + 1] for i in range(11)]
    params = [SamplingParams(temperature=0.5 + i / 10, top_k=i, seed=i, max_new_tokens=40) for i in range(11)]
    plain, quick = ([request(text, p) for text, p in zip(texts, params, strict=True)] for _ in range(2))
    assert drain(speculating(small, "prompt-lookup"), quick) == drain(engine_of(small["identical"], pages=64), plain)
    assert sum(acceptance(quick).accepted) > 20


# The rule itself: a model of six tokens whose next token depends on the last one, and a draft that is another such.

P, Q = np.random.default_rng(1).normal(0, 1.5, (2, 6, 6))


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 3}, {"temperature": 0.6, "top_p": 0.8}, {"min_p": 0.2, "logit_bias": {2: 1.0}}], ids=str
)
@pytest.mark.parametrize("q", [Q, P, np.full((6, 6), 0.1), np.eye(6) * 20], ids=["other", "same", "flat", "sure"])
def test_what_stands_and_what_replaces_it_have_the_models_distribution(options, q, full_size):
    count = 10_000 if full_size else 2_000  # which give about twice as many tokens
    params = SamplingParams(**{"temperature": 1.0, **options})
    requests = [Request([3], params, seed) for seed in range(count)]
    tables = [torch.tensor(table, dtype=torch.float32) for table in (P, q)]
    first, first_q = choose(tables[1][[3] * count], requests, Purpose.DRAFT)
    second, second_q = choose(
        tables[1][first], [r.ahead([x]) for r, x in zip(requests, first, strict=True)], Purpose.DRAFT
    )
    guesses = [
        Guess([a, b], torch.stack((first_q[i], second_q[i])))
        for i, (a, b) in enumerate(zip(first, second, strict=True))
    ]
    rows = [token for a, b in zip(first, second, strict=True) for token in (3, a, b)]
    gains = verify(tables[0][rows], requests, guesses)
    expected = _transitions(params)
    longer = [gain for gain in gains if len(gain) > 1]
    firsts = np.bincount([gain[0] for gain in gains], minlength=6)
    _agrees(firsts, expected[3] * count)
    for last in range(6):
        followers = np.bincount([gain[1] for gain in longer if gain[0] == last], minlength=6)
        if followers.sum() > 100:
            _agrees(followers, expected[last] * followers.sum())
    lengths = np.bincount([len(gain) for gain in gains], minlength=4)
    if q is P:
        assert lengths[3] == count
    stands = np.minimum(expected[3], _transitions(params, q)[3]).sum()
    assert (count - lengths[1]) / count == pytest.approx(stands, abs=2 / count**0.5), (
        "as likely to stand as the paper says"
    )


def _transitions(params: SamplingParams, table: np.ndarray = P) -> np.ndarray:
    rows = [Request([0], params, 0)] * 6
    logits = torch.tensor(table, dtype=torch.float32)
    for token, bias in params.logit_bias.items():
        logits[:, token] += bias
    p, ids = distribution(logits, Filters.of(rows, 6, logits.device))
    return torch.zeros(6, 6).scatter_(1, ids, p).double().numpy()


def _agrees(counts: np.ndarray, expected: np.ndarray) -> None:
    assert counts[expected == 0].sum() == 0
    if (expected > 0).sum() > 1:
        kept = expected > 0
        expected = expected[kept] * counts.sum() / expected.sum()
        assert scipy.stats.chisquare(counts[kept], expected).pvalue > 1e-4


@pytest.mark.parametrize("name", ["unrelated", "prompt-lookup"])
@pytest.mark.parametrize("options", [{}, {"top_k": 6, "temperature": 0.7, "repetition_penalty": 1.2}], ids=str)
def test_twenty_thousand_tokens_agree_in_distribution(small, name, options, full_size):
    """Answers of four tokens to one prompt through the whole engine, with and without a draft, by other seeds."""
    answers = 5_000 if full_size else 800
    params = SamplingParams(**{"temperature": 1.0, **options}, max_new_tokens=4, ignore_eos=True)
    engines = [engine_of(small["identical"], pages=64, max_batch=64), speculating(small, name, k=3, max_batch=64)]
    if name != "prompt-lookup":
        executor = ResidentExecutor(small[name].model, TorchOps(), 64, 64, 256)
        engines[1].speculation.draft = DraftModel(executor, small["identical"].model, 256, 128)
    prompt = np.random.default_rng(0).integers(0, 11, 100).tolist()  # with nearly every pair of tokens to look up
    batches = [[Request(prompt, params, seed) for seed in range(i * 10**6, i * 10**6 + answers)] for i in range(2)]
    plain, quick = (drain(engine, batch) for engine, batch in zip(engines, batches, strict=True))
    assert sum(acceptance(batches[1]).accepted) > answers / 20
    for first in range(3):  # each pair of neighbours
        table = np.stack(
            [
                np.bincount([11 * out[first] + out[first + 1] for out in outputs], minlength=121)
                for outputs in (plain, quick)
            ]
        )
        rare = table.sum(axis=0) < 20
        table = np.concatenate((table[:, ~rare], table[:, rare].sum(axis=1, keepdims=True)), axis=1)
        assert table.shape[1] > 10
        assert scipy.stats.chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue > 1e-4


def test_the_pace_falls_to_rare_tries_and_recovers():
    pace, guessed = Pace(), []
    for _ in range(1000):
        guessed.append(pace.length(5, cost=0.3))
        if guessed[-1]:
            pace.learn(guessed[-1], 0)
    assert guessed[0] > 1
    assert sum(guessed[:50]) <= 12
    assert sum(guessed[50:]) <= 12
    steps = 0
    while pace.length(5, cost=0.3) < 5:
        steps += 1
        if k := pace.length(5, cost=0.3):
            pace.learn(k, k)
    assert steps < 300, "a passage that can be guessed is found within a few tries"


def test_no_guess_where_rows_cost_as_much_as_steps():
    pace = Pace()
    assert pace.length(5, cost=1.0) == 0
    assert Pace().length(5, cost=0.0) == 5


def test_lookup_takes_the_longest_and_commonest_match_and_follows_loops():
    lookup = PromptLookup()

    def guess(tokens: list[int], count: int) -> list[int]:
        return lookup.guess([(request(tokens, GREEDY), count)])[0].tokens

    assert guess([1, 2, 3, 4, 5, 6, 1, 2, 3], 3) == [4, 5, 6]
    assert guess([0, 1, 2, 3, 9, 7, 2, 3, 8, 0, 1, 2, 3], 2) == [9, 7], "four matching tokens before two"
    assert guess([2, 3, 4, 2, 3, 5, 2, 3], 2) == [5, 2], "the latest of equals"
    assert guess([5, 1, 5, 1, 5, 2, 5], 1) == [1], "what came more often before what came later"
    assert guess([7, 8, 7, 8], 5) == [7, 8, 7, 8, 7], "a loop goes on"
    assert guess([1, 2, 3, 4], 5) == []
    assert guess([1], 5) == []
    r = request([1, 2, 3, 4, 5], GREEDY)
    lookup.guess([(r, 2)])
    for token in (2, 3):
        r.add(token)
    assert lookup.guess([(r, 2)])[0].tokens == [4, 5], "what was added since is indexed too"


def test_the_public_surface(llms, tmp_path):
    make("llama", tmp_path / "model")
    make("llama", tmp_path / "other")
    plain = llms["identical"].generate(prompts(3, 4, 40), GREEDY)
    for draft in (tmp_path / "other", "prompt-lookup"):
        llm = LLM(tmp_path / "model", device="cpu", dtype="float32", draft=draft, speculate_k=4)
        results = llm.generate(prompts(3, 4, 40), GREEDY)
        assert [r.ids for r in results] == [r.ids for r in plain]
        assert any(r.acceptance for r in results)
    sampled = llm.generate([[5, 9, 17]], SamplingParams(temperature=1.0, n=3, seed=1, max_new_tokens=9))[0]
    assert len({tuple(sample.ids) for sample in (sampled, *sampled.samples)}) == 3
    for wrong, words in (
        ({"draft": "random:tinyllama-1.1b,layers=1"}, "32000 tokens"),
        ({"speculate_k": 0}, "between 1 and 32"),
    ):
        with pytest.raises(UserError, match=words):
            LLM(tmp_path / "model", device="cpu", **wrong)


def test_a_draft_model_with_a_window_guesses_behind_a_long_prompt(tmp_path):
    """Its groups with a window get pages step by step: those of the guesses too, also beyond the prompt's last page."""
    make("mistral", tmp_path)
    llm = LLM(tmp_path, device="cpu", dtype="float32")
    models = {"identical": llm, "window": llm}
    text = prompts(1, 400, 400, seed=11)[0]
    for length in (125, 190, 380):
        draft = draft_of(models, "window", pages=12)
        r = request(text[:length], GREEDY)
        r.pages = SequencePages([0])
        for _ in range(4):  # pages are crossed between guesses and inside them
            (guess,) = draft.guess([(r, 5)])
            assert guess.tokens == llm.generate([r.tokens], SamplingParams(max_new_tokens=5, ignore_eos=True))[0].ids
            check_pool(draft.pool, list(draft._pages.values()))
            r.tokens += guess.tokens
        assert all((rows[:, 0] == 0).all() for rows in draft.executor.cache.rows.values()), "the null page stays zero"


def test_a_draft_model_without_pages_fails_no_request(tmp_path):
    make("mistral", tmp_path)
    llm = LLM(tmp_path, device="cpu", dtype="float32")
    texts = prompts(4, 150, 300, seed=12)
    for pages in (2, 4, 6):
        engine = engine_of(llm, pages=64, max_tokens=256)
        engine.speculation = Steady(draft_of({"identical": llm, "window": llm}, "window", pages=pages), 5, 0.05)
        outputs = drain(engine, [request(text, GREEDY) for text in texts], each_step=check_pages)
        assert outputs == [r.ids for r in llm.generate(texts, GREEDY)]
