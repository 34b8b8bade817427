"""Placed models on a GPU: streams, pinned memory and threads give the resident model's tokens, within the budget."""

import random
import subprocess
import sys

import pytest

from genwright import LLM, SamplingParams
from genwright.placement.tiers import Tier

pytestmark = pytest.mark.gpu
DENSE, MIXTURE = "random:opt-1.3b,layers=5", "random:qwen1.5-moe-a2.7b,layers=3"
GREEDY = SamplingParams(max_new_tokens=24, ignore_eos=True)
PLACES = ("100,0", "0,100", "0,0", "30,40")
SWITCHES = ("", ",overlap=false", ",pin=false", ",separate_layers=false")
SCRIPT = """
import sys, torch
from genwright import LLM, SamplingParams
model, policy, budget, quant = sys.argv[1:]
llm = LLM(model, device="cuda", offload=policy, gpu_mem=budget, max_context=320, quant=quant or None)
llm.generate([[i] * 256 for i in range(100, 132)], SamplingParams(max_new_tokens=16, ignore_eos=True))
print(torch.cuda.max_memory_reserved())
"""


def prompts(count: int) -> list[list[int]]:
    rng = random.Random(count)
    return [[rng.randrange(3, 30_000) for _ in range(rng.randint(1, 200))] for _ in range(count)]


def generate(model: str, count: int, **settings) -> list[list[int]]:
    settings = {"dtype": "bfloat16", "deterministic": True, "max_context": 512, "gpu_mem": 16, **settings}
    with LLM(model, device="cuda", **settings) as llm:
        return [result.ids for result in llm.generate(prompts(count), GREEDY)]


@pytest.fixture(scope="module")
def resident() -> dict[str, list[list[int]]]:
    return {quant: generate(DENSE, 11, quant=quant or None) for quant in ("", "int4")}


@pytest.mark.parametrize("switch", SWITCHES)
@pytest.mark.parametrize("weights", PLACES)
@pytest.mark.parametrize("quant", ["", "int4"])
def test_weights_from_every_tier_give_the_same_bits(resident, weights, switch, quant, tmp_path):
    policy = f"{weights},100,0,100,0,micro_batch=4,micro_batches=3{switch}"
    found = generate(DENSE, 11, quant=quant or None, offload=policy, offload_dir=str(tmp_path))
    assert found == resident[quant]


@pytest.mark.parametrize("shares", ["0,100,0,100", "0,0,0,0", "40,30,30,40", "0,100,50,0"])
def test_cache_and_activations_from_every_tier_give_the_same_bits(resident, shares, tmp_path):
    policy = f"20,50,{shares},micro_batch=4,micro_batches=3"
    assert generate(DENSE, 11, offload=policy, offload_dir=str(tmp_path)) == resident[""]


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("weights", ["0,100", "30,70", "40,30"])
def test_experts_by_choice_and_all_together(weights, count, tmp_path):
    policy = f"{weights},100,0,100,0,micro_batch=8,micro_batches=5"
    found = generate(MIXTURE, count, offload=policy, offload_dir=str(tmp_path))
    assert found == generate(MIXTURE, count)


@pytest.mark.parametrize("settings", [{"draft": "prompt-lookup"}, {"kv": "int8"}, {"backend": "torch"}], ids=str)
def test_settings_of_the_engine(settings, tmp_path):
    placed = {"offload": "10,60,60,20,50,30,micro_batch=3,micro_batches=3", "offload_dir": str(tmp_path)}
    assert generate(DENSE, 7, **settings, **placed) == generate(DENSE, 7, **settings)


def test_pinned_memory_crosses_the_bus_once_per_step():
    with LLM(DENSE, device="cuda", dtype="bfloat16", offload="0,100,100,0,100,0", max_context=512, gpu_mem=8) as llm:
        llm.generate(prompts(8), GREEDY)
        blocks = sum(block.layout.size for block in llm.model.blocks)
        moved = llm.engine.executor.tiers.use.moved[Tier.CPU, Tier.GPU]
        assert all(block.pinned and block.cpu.is_pinned() for block in llm.model.blocks)
        assert moved <= (llm.engine.steps + 1) * blocks


@pytest.mark.parametrize(
    ("model", "policy", "gigabytes", "quant"),
    [
        ("random:opt-6.7b,layers=8", "0,100,100,0,100,0,micro_batch=16,micro_batches=2", "3.2GB", ""),
        ("random:opt-6.7b,layers=8", "20,80,50,50,50,50,micro_batch=8,micro_batches=4", "3.2GB", "int4"),
    ],
)
def test_a_gpu_budget_is_kept(model, policy, gigabytes, quant):
    command = [sys.executable, "-c", SCRIPT, model, policy, gigabytes, quant]
    reserved = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])
    assert reserved <= float(gigabytes.removesuffix("GB")) * 1e9
