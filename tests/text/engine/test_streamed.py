"""A placed model generates the tokens that a resident one does, wherever its weights, cache and states are."""

import gc
import itertools
import random
import weakref
from functools import cache

import pytest
from safetensors.torch import save_file
from text.checkpoints.tiny_gguf import tiny_model, write_gguf
from text.deepseek_folders import with_draft
from text.drafts.setup import answer, mix
from text.engine.setup import drain
from text.families import make

from genwright import LLM, SamplingParams
from genwright.errors import UserError
from genwright.placement.tiers import Tier
from genwright.text import placed_model
from genwright.text.engine.streamed import StreamedExecutor, split
from genwright.text.ops.step import Chunk

GREEDY = SamplingParams(max_new_tokens=7, ignore_eos=True)
PROMPTS = [[random.Random(i).randrange(3, 199) for _ in range(5 + 23 * i)] for i in range(6)]
FAMILIES = ("opt", "llama", "mixtral", "deepseek-v3", "gemma3")
PLACES = ("100,0", "0,100", "0,0")
CORNERS = [",".join(places) for places in itertools.product(PLACES, repeat=3)]
SPREAD = "30,40,100,0,40,30,micro_batch=2,micro_batches=3"


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    paths = {family: tmp_path_factory.mktemp(family) for family in FAMILIES}
    for family, path in paths.items():
        make(family, path)
    return paths


def generate(folder, prompts=PROMPTS, **settings) -> list[list[int]]:
    with LLM(folder, device="cpu", dtype="float32", max_context=256, **settings) as llm:
        assert isinstance(llm.engine.executor, StreamedExecutor) == ("offload" in settings)
        return [result.ids for result in llm.generate(prompts, GREEDY)]


@pytest.mark.parametrize("settings", [{}, {"offload": SPREAD}, {"draft": "prompt-lookup"}], ids=str)
def test_closing_frees_the_memory_at_once(folders, settings, tmp_path):
    gc.disable()  # nobody should wait for the garbage collector, which does not know how large tensors are
    try:
        with LLM(folders["llama"], device="cpu", max_context=256, offload_dir=str(tmp_path), **settings) as llm:
            llm.generate(PROMPTS[:2], GREEDY)
            executor = weakref.ref(llm.engine.executor)
        del llm
        assert executor() is None
    finally:
        gc.enable()


def test_a_model_that_fails_to_load_leaves_nothing_behind(folders, monkeypatch, tmp_path):
    monkeypatch.setattr(placed_model, "StreamedExecutor", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        LLM(folders["llama"], device="cpu", max_context=256, offload="0,0,0,0,0,0", offload_dir=str(tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="session")
def resident(folders):
    return cache(lambda family: generate(folders[family]))


def random_policy(rng: random.Random) -> str:
    shares = []
    for _ in range(3):
        gpu = rng.choice((0, 100, rng.randint(0, 100)))
        shares += [gpu, rng.choice((100 - gpu, rng.randint(0, 100 - gpu)))]
    names = ("overlap", "separate_layers", "pin", "cpu_attention")
    switches = [f"{name}={rng.choice(('true', 'false'))}" for name in names]
    batches = [f"micro_batch={rng.randint(1, 4)}", f"micro_batches={rng.randint(1, 3)}"]
    return ",".join((*map(str, shares), *switches, *batches))


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_depend_on_no_policy(folders, resident, family, full_size, tmp_path):
    rng, first = random.Random(family), FAMILIES.index(family)
    policies = CORNERS if full_size else CORNERS[first :: len(FAMILIES)]
    policies = [*policies, *(random_policy(rng) for _ in range(50 if full_size else 6))]
    for policy in policies:
        found = generate(folders[family], offload=policy, offload_dir=tmp_path)
        assert found == resident(family), policy


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("quant", ["int4", "int8"])
def test_packed_weights(folders, family, quant):
    assert generate(folders[family], quant=quant, offload=SPREAD) == generate(folders[family], quant=quant)


def test_a_gguf_file_stays_packed(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", tiny_model("llama", max_position_embeddings=256), "Q8_0")
    prompts = [[token % 40 for token in prompt] for prompt in PROMPTS]
    assert generate(path, prompts, quant="keep", offload=SPREAD) == generate(path, prompts, quant="keep")


def test_a_gpu_share_is_used_in_place_and_the_rest_crosses_once_per_step(folders, tmp_path):
    moved = {}
    for policy in ("100,0", "60,40", "0,100"):
        settings = {"offload": f"{policy},100,0,100,0", "offload_dir": tmp_path, "quant": "int8"}
        with LLM(folders["llama"], device="cpu", dtype="float32", max_context=256, **settings) as llm:
            llm.generate(PROMPTS, GREEDY)
            use, blocks = llm.engine.executor.tiers.use, sum(block.layout.size for block in llm.model.blocks)
            moved[policy] = use.moved[Tier.CPU, Tier.GPU]
            assert use.held[Tier.CPU] == sum(len(block.cpu) for block in llm.model.blocks)
            steps = llm.engine.steps
    assert moved["100,0"] == 0 and moved["60,40"] < 0.6 * moved["0,100"]
    ahead = 2 / 3 * blocks  # two of the three blocks for a step that did not come
    assert 0.98 * steps * blocks < moved["0,100"] - ahead <= steps * blocks


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_every_option_of_a_request(folders, family, tmp_path):
    """Options, drafts and shared prefixes, bit by bit."""
    answers = []
    for settings in ({}, {"offload": SPREAD}, {"offload": "0,50,30,30,0,50", "draft": "prompt-lookup"}):
        with LLM(
            folders[family], device="cpu", dtype="float32", deterministic=True, max_context=256, **settings
        ) as llm:
            requests = mix(12, seed=3, longest=40)
            drain(llm.engine, requests)
            again = llm.generate(PROMPTS, GREEDY) + llm.generate(PROMPTS, GREEDY)
            assert again[-1].timing.cached_tokens > 60
            answers.append(([answer(request) for request in requests], [result.ids for result in again]))
    assert answers[1] == answers[0] and answers[2] == answers[0]


def test_the_multi_token_prediction_layer(tmp_path):
    make("deepseek-v3", tmp_path)
    save_file(with_draft(tmp_path), tmp_path / "model.safetensors", {"format": "pt"})
    truth = generate(tmp_path, deterministic=True)
    assert generate(tmp_path, deterministic=True, draft="mtp", offload=SPREAD) == truth


def test_a_single_stream_brings_only_the_experts_that_it_chose(folders):
    prompts = [PROMPTS[2]]
    with LLM(folders["mixtral"], device="cpu", dtype="float32", offload="0,100,100,0,100,0") as llm:
        result = llm.generate(prompts, GREEDY)[0]
        moved, steps = llm.engine.executor.tiers.use.moved, llm.engine.steps
        before = moved[Tier.CPU, Tier.GPU]
        llm.generate([[5]], GREEDY)
        steps, moved = llm.engine.steps - steps, moved[Tier.CPU, Tier.GPU] - before
    assert [result.ids] == generate(folders["mixtral"], prompts)
    assert moved < 0.7 * steps * sum(block.layout.size for block in llm.model.blocks)


def test_logits_and_the_fingerprint_are_those_of_the_resident_model(folders):
    found = []
    for settings in ({}, {"offload": SPREAD}):
        with LLM(folders["opt"], device="cpu", dtype="float32", deterministic=True, **settings) as llm:
            found.append((llm.logits(PROMPTS[3]), llm.fingerprint, llm.model.step_bytes))
    assert found[0][0].equal(found[1][0]) and found[0][1:] == found[1][1:]


def test_split_cuts_chunks_and_keeps_what_is_wanted():
    chunks = [Chunk(list(range(i)), 10 * i, [[0]], 2) for i in (2, 7, 3)]
    groups = list(split(chunks, 2, 4))
    assert [[(c.tokens, c.start, c.logits) for c in group] for group in groups] == [
        [([0, 1], 20, 2), ([0, 1], 70, 0)],
        [([2, 3, 4, 5], 72, 1)],
        [([6], 76, 1), ([0, 1, 2], 30, 2)],
    ]


def test_a_budget_is_kept_or_refused(folders, resident, tmp_path):
    needs = {}
    for policy in ("0,0,0,0,100,0", "0,100,100,0,100,0"):
        low, high = 1 << 10, 1 << 28
        while high - low > 1 << 14:  # the smallest budget
            middle = (low + high) // 2
            try:
                with LLM(
                    folders["llama"], device="cpu", dtype="float32", cpu_mem=middle / 1e9, max_context=256,
                    offload=f"{policy},micro_batch=1,micro_batches=2", max_step_tokens=64, offload_dir=tmp_path,
                ) as llm:  # fmt: skip
                    peak = llm.engine.executor.tiers.use.peak
                    assert peak[Tier.GPU] + peak[Tier.CPU] <= middle
                    high = middle
            except UserError as error:
                assert "may be used" in str(error)
                low = middle
        needs[policy] = high
    assert needs["0,0,0,0,100,0"] < needs["0,100,100,0,100,0"]
