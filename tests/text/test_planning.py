"""Facts about models against the loader and the cache, which take the memory."""

from pathlib import Path

import pytest
import torch
from placement.profiles import LAPTOP, OPT_13B, OPT_13B_INT4

from genwright.device import free_memory
from genwright.errors import UserError
from genwright.placement.footprint import Workload
from genwright.placement.model_facts import ModelFacts
from genwright.quant.formats import parse_format
from genwright.text import planning
from genwright.text.architectures.registry import ARCHITECTURES, architecture
from genwright.text.cache.layout import CACHE_BITS, CacheSpec
from genwright.text.checkpoints.random import RandomWeights
from genwright.text.loader import Loader
from genwright.text.planning import budgets, model_facts, plan_model
from genwright.text.settings import EngineConfig

CPU = torch.device("cpu")


def loader(name: str, quant: str | None = None) -> Loader:
    checkpoint = RandomWeights(f"random:{name}")
    dtype = getattr(torch, checkpoint.config.dtype)
    return Loader(checkpoint, dtype, CPU, quant=None if quant is None else parse_format(quant))


@pytest.mark.parametrize(
    ("name", "quant", "kv"),
    [
        ("opt-350m", None, "auto"),
        ("opt-30b", None, "auto"),
        ("opt-175b", "int4", "int4"),
        ("llama-2-7b", "fp8", "int8"),
        ("qwen2.5-0.5b", "int8", "auto"),
        ("mistral-7b", "int4:g64:asym", "auto"),
        ("mixtral-8x7b", None, "auto"),
        ("qwen1.5-moe-a2.7b", "int4", "int8"),
        ("deepseek-v2-lite", "int4", "auto"),
        ("gemma-3-1b", None, "int4"),
    ],
)
def test_a_shape_takes_the_bytes_that_the_loader_and_the_cache_take(name: str, quant: str | None, kv: str) -> None:
    loads = loader(name, quant)
    facts, cfg = model_facts(loads, kv), loads.checkpoint.config
    assert facts.outer + facts.blocks == pytest.approx(loads.total_bytes())
    spec = CacheSpec(architecture(cfg).cache_layers(cfg), loads.dtype, CACHE_BITS[kv])
    # Gemma's groups of layers are of one size, which may leave some of a page unused.
    unused = 0.1 if name.startswith("gemma") else 0.0
    for length in (1, 300, 2000):
        assert facts.cache_held(length) == pytest.approx(spec.page_bytes * spec.pages_of(length, 0), rel=unused)
    assert facts.packed == (quant is not None)


def test_every_architecture_has_facts() -> None:
    for each in ARCHITECTURES.values():
        facts = model_facts(loader(next(iter(each.SHAPES))), "auto")
        assert facts.block > 0 and facts.parameters > 0 and facts.cache_row > 0


@pytest.mark.parametrize(("quant", "by_hand"), [(None, OPT_13B), ("int4", OPT_13B_INT4)])
def test_opt_13b_by_hand(quant: str | None, by_hand: ModelFacts) -> None:
    """The numbers that the planner's tests use, which leave out biases and norms."""
    facts = model_facts(loader("opt-13b", quant), "auto")
    for name in ("block", "largest_block", "parameters", "head", "working", "logits", "widened"):
        assert getattr(facts, name) == pytest.approx(getattr(by_hand, name), rel=1e-3), name
    head = 50272 * (5120 + 4) if quant else 0  # a head in 8 bits beside the embedding that it is tied to otherwise
    assert facts.outer == pytest.approx(by_hand.outer + head, rel=1e-3)
    for name in ("layers", "itemsize", "hidden", "cache_row", "windows", "attention", "experts", "top_k"):
        assert getattr(facts, name) == getattr(by_hand, name), name


def test_experts_count_for_themselves() -> None:
    facts = model_facts(loader("mixtral-8x7b"), "auto")
    assert (facts.experts, facts.top_k) == (8, 2)
    assert facts.expert_parameters == 8 * 3 * 4096 * 14336
    assert facts.expert_bytes == 2 * facts.expert_parameters
    assert facts.parameters == 2 * 4096**2 + 2 * 4096 * 1024 + 8 * 4096  # with the router
    one = facts.parameters + facts.expert_parameters / 4
    assert facts.moved(1) == pytest.approx(2 * one, rel=0.001)  # and a router in float32
    assert facts.moved(1000) == pytest.approx(facts.block)
    deepseek = model_facts(loader("deepseek-v2-lite"), "auto")
    assert deepseek.expert_parameters == pytest.approx(64 * 3 * 2048 * 1408 * 26 / 27)  # one layer is dense
    assert deepseek.cache_row == 2 * 576 and deepseek.attention == 2 * 16 * (512 + 576)


def test_local_layers_keep_their_windows() -> None:
    facts = model_facts(loader("gemma-3-1b"), "auto")
    assert facts.windows.count(None) == 4 and facts.windows.count(512) == 22


def test_budgets_are_as_given_or_what_is_free(tmp_path: Path) -> None:
    given = budgets(EngineConfig(cpu_mem="2GiB", gpu_mem=3, offload_dir=str(tmp_path / "new")), CPU)
    assert (given.gpu, given.cpu) == (0, 2 << 30) and given.disk > 0
    free = budgets(EngineConfig(offload_dir=str(tmp_path)), CPU)
    assert EngineConfig(offload_dir="~/x").offload_folder == Path.home() / "x"
    assert free.cpu == pytest.approx(free_memory(CPU), rel=0.2)


def test_a_plan_for_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "this_machine", lambda *_: LAPTOP)
    loads, work = loader("stories110m"), Workload(32, 8, 2)
    config = EngineConfig(cpu_mem="220MB", offload_dir=str(tmp_path))
    small, given, machine = plan_model(loads, config, work)
    assert small.bytes["disk"] > 0 and small.bytes["gpu"] <= given.cpu == 220_000_000
    assert not small.policy.resident and machine == LAPTOP
    large, _, _ = plan_model(loads, EngineConfig(cpu_mem=4, offload_dir=str(tmp_path)), work)
    assert large.policy.resident
    with pytest.raises(UserError, match=r"need a context of 1,032, but the model's is 1,024\.$"):
        plan_model(loads, config, Workload(1024, 8, 2))
