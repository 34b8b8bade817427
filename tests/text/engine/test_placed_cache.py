"""A model whose cache is in several tiers generates the tokens that a resident one does."""

import random
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch
from text.cache.invariants import available
from text.engine.mixes import random_sorts, run_alone, run_mix
from text.engine.setup import check_pages, drain, request
from text.families import make

from genwright import LLM, SamplingParams
from genwright.errors import UserError
from genwright.placement.policy import Policy
from genwright.placement.tiers import Tier
from genwright.text.cache.tiered import TieredPages
from genwright.text.engine.placed_cache import Source

FAMILIES = ("opt", "llama", "mixtral", "deepseek-v2-lite", "gemma3")
GREEDY = SamplingParams(max_new_tokens=6, ignore_eos=True)
SEEDED = SamplingParams(max_new_tokens=6, ignore_eos=True, temperature=1.0, seed=3)
CORNERS = ("100,0", "0,100", "0,0", "50,50", "50,0", "0,50", "34,33")
FORMATS = ("auto", "int8", "int4")
DRAFTS = (None, "prompt-lookup", "self:int8")


def prompts() -> list[list[int]]:
    """Some share their first pages, in one call and with the next one; some repeat themselves."""
    rng = random.Random(0)
    texts = [[rng.randrange(3, 199) for _ in range(5 + 43 * i)] for i in range(4)]
    return [*texts, texts[3][:100] + texts[1], texts[1] * 2]


def open_llm(folder: Path, **settings) -> LLM:
    # Rows of other bits are rounded to other 8- or 4-bit values.
    exact = settings.get("kv", "auto") != "auto"
    settings = {"max_context": 320, "max_step_tokens": 150, "deterministic": exact, "device": "cpu", **settings}
    return LLM(folder, dtype="float32", **settings)


def generate(folder: Path, **settings) -> list[list[int]]:
    """Two calls, of which the second finds prefixes of the first."""
    with open_llm(folder, **settings) as llm:
        results = llm.generate(prompts(), GREEDY)
        results += llm.generate([prompts()[3] + results[3].ids, prompts()[4]], SEEDED)
        one_at_a_time = Policy.parse(settings.get("offload", "100,0,100,0,100,0")).batch == 1  # with room for one
        assert results[-2].timing.cached_tokens >= 64 or one_at_a_time
        return [result.ids for result in results]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    paths = {family: tmp_path_factory.mktemp(family) for family in FAMILIES}
    for family, path in paths.items():
        make(family, path)
    return paths


@pytest.fixture(scope="module")
def resident(folders):
    return cache(lambda family, kv="auto": generate(folders[family], kv=kv))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shares", CORNERS)
def test_tokens_do_not_depend_on_where_the_cache_is(folders, resident, family, shares, tmp_path):
    policy = f"100,0,{shares},100,0,micro_batch=3,micro_batches=2"
    assert generate(folders[family], offload=policy, offload_dir=str(tmp_path)) == resident(family)


def random_policy(rng: random.Random, kv: str) -> str:
    gpu = rng.choice((0, rng.randint(0, 100)))
    cpu = rng.choice((100 - gpu, rng.randint(0, 100 - gpu)))
    policy = f"100,0,{gpu},{cpu},100,0,micro_batch={rng.randint(1, 4)},micro_batches={rng.randint(1, 3)}"
    switches = {"overlap": rng.random() < 0.5, "cpu_attention": kv == "auto" and rng.random() < 0.5}
    return policy + "".join(f",{name}={str(value).lower()}" for name, value in switches.items())


def test_random_policies_formats_and_drafts_change_no_token(folders, resident, full_size, tmp_path):
    for seed in range(100 if full_size else 9):
        rng = random.Random(seed)
        family, kv, draft = FAMILIES[seed % len(FAMILIES)], rng.choice(FORMATS), DRAFTS[seed % len(DRAFTS)]
        settings = {"kv": kv, "draft": draft, "offload": random_policy(rng, kv), "offload_dir": str(tmp_path)}
        assert generate(folders[family], **settings) == resident(family, kv), (family, settings)


@pytest.mark.parametrize("family", ["llama", "gemma3", "deepseek-v2-lite"])
def test_no_page_is_lost_by_arrivals_cancellations_and_preemptions(folders, family, full_size, tmp_path):
    kinds = random_sorts(20, 199, seed=4)
    alone = open_llm(folders[family], deterministic=True)
    run_alone(alone.engine, kinds)
    policy = "100,0,40,40,100,0,micro_batch=2,micro_batches=2"
    settings = {"deterministic": True, "offload": policy, "offload_dir": str(tmp_path), "draft": "prompt-lookup"}
    llm = open_llm(folders[family], **settings)
    engine = llm.engine
    happened = Counter[str]()
    for seed in range(60 if full_size else 4):
        rng = random.Random(seed)
        happened += Counter(run_mix(engine, rng.sample(kinds, rng.randint(2, 9)), rng))
        spec = engine.pool.cache.spec
        assert available(engine.pool) == sum(tier.pages - spec.null_pages for tier in engine.pool.cache.tiers)
        assert isinstance(engine.pool, TieredPages) and not any(engine.pool.running)
    assert happened["preempted"] > 0, happened


@pytest.mark.parametrize("shares", ["0,100", "0,0"])
def test_nan_ends_its_own_request_alone(folders, shares, tmp_path):
    settings = {"offload": f"100,0,{shares},100,0,micro_batch=2,micro_batches=1", "offload_dir": str(tmp_path)}
    llm = open_llm(folders["llama"], **settings)
    engine, (good, bad) = llm.engine, prompts()[2:4]
    with open_llm(folders["llama"]) as truth:
        expected = [result.ids for result in truth.generate([good, bad], GREEDY)]
    run, victims = engine.executor.run, [request(bad, GREEDY), request(good, GREEDY)]
    block = engine.executor.model.architecture.block

    def poisoned(ops, cfg, weights, cache, x, step):
        """The first sequence's hidden state, and with it its rows in later layers, become NaN."""
        x = block(ops, cfg, weights, cache, x, step)
        rows = step.offsets[0:2].tolist() if engine.steps == 2 else [0, 0]
        x[slice(*rows)] = float("nan")
        return x

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.executor.model.architecture, "block", poisoned)
        for each in victims:
            engine.submit(each)
        while engine.busy():
            engine.step()
            check_pages(engine)
    assert [each.finish_reason for each in victims] == ["error", "length"]
    assert victims[1].output == expected[0]
    assert engine.executor.run == run
    again = [request(bad, GREEDY), request(good, GREEDY)]
    assert drain(engine, again) == expected[::-1], "pages of the poisoned request are clean"


def test_a_step_that_runs_out_of_memory_is_tried_again(folders, resident, tmp_path):
    settings = {"offload": "100,0,0,50,100,0,micro_batch=2,micro_batches=3", "offload_dir": str(tmp_path)}
    llm = open_llm(folders["llama"], **settings)
    engine = llm.engine
    block, calls = engine.executor.model.architecture.block, [0]

    def failing(*args):
        calls[0] += 1
        if calls[0] % 29 == 0:
            raise torch.OutOfMemoryError("no")
        return block(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.executor.model.architecture, "block", failing)
        found = drain(engine, [request(text, GREEDY) for text in prompts()], check_pages)
    assert found == resident("llama")[: len(found)]
    assert calls[0] > 29


def test_a_prompt_that_is_cut_into_micro_batches_reads_its_own_rows(folders, tmp_path):
    """A part of a prompt needs the rows that the part before it writes in the same step, also on disk."""
    text = [random.Random(1).randrange(3, 199) for _ in range(300)]
    with open_llm(folders["llama"]) as llm:
        expected = llm.generate([text, text[:200]], GREEDY)
    for shares in ("0,100", "0,0"):
        settings = {"offload": f"100,0,{shares},100,0", "offload_dir": str(tmp_path), "max_step_tokens": 512}
        with open_llm(folders["llama"], **settings) as llm:
            llm.engine.executor._micro_tokens = 90
            assert [r.ids for r in llm.generate([text, text[:200]], GREEDY)] == [r.ids for r in expected]


def test_attention_on_the_cpu_moves_no_page(folders, tmp_path):
    used = []
    for where in ("true", "false"):
        policy = f"100,0,0,100,100,0,cpu_attention={where}"
        with open_llm(folders["llama"], offload=policy) as llm:
            llm.generate(prompts()[:1], GREEDY)
            used.append(llm.engine.executor.tiers.use.moved[Tier.CPU, Tier.GPU])
    assert used[0] == 0 < used[1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention_on_the_cpu_in_half_precision(folders, dtype):
    """The first tokens agree; later ones may differ by rounding."""
    found = []
    for where in ("true", "false"):
        settings = {"dtype": dtype, "max_context": 320, "offload": f"100,0,0,100,100,0,cpu_attention={where}"}
        with LLM(folders["llama"], device="cpu", **settings) as llm:
            found.append([result.ids[:2] for result in llm.generate(prompts(), GREEDY)])
    assert found[0] == found[1]


def test_a_mixed_micro_batch_has_a_place_for_each_tier(folders, tmp_path):
    settings = {"offload": "100,0,40,40,100,0,cpu_attention=true", "offload_dir": str(tmp_path)}
    llm = open_llm(folders["llama"], **settings)
    engine = llm.engine
    placement, seen = engine.executor._caches, []
    place = placement.place

    def watching(*args):
        batch = place(*args)
        seen.append({source for source, _ in batch.places})
        return batch

    placement.place = watching
    drain(engine, [request(text, GREEDY) for text in prompts()])
    assert {Source.DEVICE, Source.HOST, Source.STAGED} in seen


def test_sparse_attention_moves_the_keys_and_a_part_of_the_values(folders):
    moved = []
    for sparsity in (0.2, 1.0):
        with open_llm(folders["opt"], offload=f"100,0,0,100,100,0,sparsity={sparsity}") as llm:
            llm.generate(prompts()[3:4], GREEDY)
            moved.append(llm.engine.executor.tiers.use.moved[Tier.CPU, Tier.GPU])
    assert 2 * moved[0] == moved[1] > 0  # what is read by token is not counted


def test_deterministic_mode_refuses_what_is_not(folders):
    for field in ("cpu_attention=true", "sparsity=0.5"):
        with pytest.raises(UserError, match="no deterministic mode"):
            open_llm(folders["llama"], deterministic=True, offload=f"100,0,0,100,100,0,{field}")


def test_sparse_attention_does_not_depend_on_tiers_drafts_or_preemption(folders, tmp_path):
    """Each generated token reads its own part of the cache, whatever else is computed with it."""
    kinds = random_sorts(9, 199, seed=5)
    for family in ("llama", "gemma3", "deepseek-v2-lite"):
        settings = {"offload_dir": str(tmp_path), "max_step_tokens": 70}
        alone = "100,0,100,0,100,0,sparsity=0.3,micro_batch=1"
        llm = open_llm(folders[family], offload=alone, **settings)
        run_alone(llm.engine, kinds)
        sparse = [kind.answer[0] for kind in kinds]
        mixed = "100,0,30,40,100,0,sparsity=0.3,micro_batch=3,micro_batches=2,cpu_attention="
        for seed, switch in enumerate(("true", "false")):
            rng = random.Random(seed)
            llm = open_llm(folders[family], offload=mixed + switch, draft="prompt-lookup", **settings)
            run_ids(llm.engine, rng.sample(kinds, 7), rng)
        llm = open_llm(folders[family])
        run_alone(llm.engine, kinds)
        assert [kind.answer[0] for kind in kinds] != sparse, "sparsity changes the text"


def run_ids(engine, kinds, rng) -> None:
    """As `run_mix`, but the last bits of log-probabilities may differ."""
    requests = [(kind, kind.request()) for kind in kinds]
    for _, each in requests:
        engine.submit(each)
        for _ in range(rng.choice((0, 2))):
            engine.step()
        if engine.scheduler.running and rng.random() < 0.3:
            engine.scheduler.preempt(engine.scheduler.running[-1])
    while engine.busy():
        engine.step()
    check_pages(engine)
    for kind, each in requests:
        assert each.output == kind.answer[0]


ON_GPU = {"device": "cuda", "gpu_mem": 4, "max_step_tokens": 150}


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("policy", ["0,100,100,0", "0,0,100,0", "34,33,100,0", "20,80,100,0,cpu_attention=true"])
def test_a_gpu_reads_every_tier(folders, family, policy, tmp_path):
    placed = {"offload": f"100,0,{policy},micro_batch=3,micro_batches=2", "offload_dir": str(tmp_path)}
    found = generate(folders[family], backend="torch", **ON_GPU, **placed)
    assert found == generate(folders[family], backend="torch", **ON_GPU)


@pytest.mark.gpu
@pytest.mark.parametrize("kv", FORMATS)
def test_sparse_attention_on_a_gpu_does_not_depend_on_tiers(kv, tmp_path):
    """With the kernels of the triton backend for prompts and for writing rows."""
    found = []
    for shares in ("100,0", "0,100", "0,0"):
        placed = {"offload": f"100,0,{shares},100,0,sparsity=0.3,micro_batch=3", "offload_dir": str(tmp_path)}
        found.append(generate("random:tinyllama-1.1b,layers=2", kv=kv, deterministic=False, **ON_GPU, **placed))
    assert all(each == found[0] for each in found)
