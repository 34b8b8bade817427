"""A placed model generates the tokens that a resident one does, wherever its weights are."""

import random

import pytest
from text.families import make

from genwright import LLM, SamplingParams
from genwright.placement.tiers import Tier
from genwright.text.engine.streamed import split
from genwright.text.ops.step import Chunk

GREEDY = SamplingParams(max_new_tokens=8, ignore_eos=True)
PROMPTS = [[random.Random(i).randrange(3, 199) for _ in range(5 + 17 * i)] for i in range(7)]
FAMILIES = ("opt", "llama", "mixtral", "deepseek-v3", "gemma3")
ACTIVATIONS = ("0,100", "0,0", "40,30", "70,0")
CORNERS = ("100,0", "0,100", "0,0", "50,50", "30,40", "50,0")


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    paths = {family: tmp_path_factory.mktemp(family) for family in FAMILIES}
    for family, path in paths.items():
        make(family, path)
    return paths


@pytest.fixture(scope="session")
def resident(folders):
    found = {}
    for family, path in folders.items():
        with LLM(path, device="cpu", dtype="float32") as llm:
            found[family] = [result.ids for result in llm.generate(PROMPTS, GREEDY)]
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("weights", CORNERS)
@pytest.mark.parametrize("batches", ["", ",micro_batch=2,micro_batches=3,overlap=false,separate_layers=false"])
def test_tokens_do_not_depend_on_where_weights_are(folders, resident, family, weights, batches, tmp_path):
    policy = f"{weights},100,0,100,0{batches}"
    with LLM(folders[family], device="cpu", dtype="float32", offload=policy, offload_dir=tmp_path) as llm:
        assert [result.ids for result in llm.generate(PROMPTS, GREEDY)] == resident[family]
        use = llm.engine.executor.tiers.use
        gpu, cpu = map(int, weights.split(","))
        assert (use.held[Tier.CPU] > 0, use.held[Tier.DISK] > 0) == (cpu > 0, gpu + cpu < 100)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("activations", ACTIVATIONS)
def test_tokens_do_not_depend_on_where_activations_are(folders, resident, family, activations, tmp_path):
    policy = f"40,30,100,0,{activations},micro_batch=3,micro_batches=5"
    with LLM(folders[family], device="cpu", dtype="float32", offload=policy, offload_dir=tmp_path) as llm:
        assert [result.ids for result in llm.generate(PROMPTS, GREEDY)] == resident[family]


def test_split_cuts_chunks_and_keeps_what_is_wanted():
    chunks = [Chunk(list(range(i)), 10 * i, [[0]], 2) for i in (2, 7, 3)]
    groups = list(split(chunks, 2, 4))
    assert [[(c.tokens, c.start, c.logits) for c in group] for group in groups] == [
        [([0, 1], 20, 2), ([0, 1], 70, 0)],
        [([2, 3, 4, 5], 72, 1)],
        [([6], 76, 1), ([0, 1, 2], 30, 2)],
    ]
