"""The cache in 8 and 4 bits against the exact one: alone, in ragged batches, in chunks, from the prefix tree."""

from pathlib import Path

import pytest
import torch
from text.engine.setup import check_pages, drain, request
from text.families import make

from genwright import LLM, SamplingParams
from genwright.quant.kv_cache import entries, pack, unpack
from genwright.text.architectures import llama
from genwright.text.architectures.deepseek import cache_layers
from genwright.text.architectures.registry import named_shape, read_config
from genwright.text.cache.layout import PAGE, Cache, CacheSpec, LayerCache, LayerSpec
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.config import Attention
from genwright.text.engine.engine import Engine
from genwright.text.engine.executor import ResidentExecutor
from genwright.text.loader import Loader
from genwright.text.ops.cpu_ops import CpuOps
from genwright.text.ops.step import Chunk, StepBuffers
from genwright.text.ops.torch_ops import TorchOps

FAMILIES = ("llama", "llama-mha", "mistral", "opt", "deepseek-v3")
CPU = torch.device("cpu")
PROMPTS = [torch.randint(3, 199, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (5, 130, 64, 90)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        make(family, home / family)
    return {family: home / family for family in FAMILIES}


@pytest.mark.parametrize("bits", [8, 4])
def test_attention_within_the_error_of_the_rows(bits: int) -> None:
    """Weights of a softmax over scores that are off by at most e are off by a factor of at most exp(2 e)."""
    heads, size, tokens = 2, 80, 150
    torch.manual_seed(0)
    rows = {name: torch.randn(tokens, heads, size) for name in "kv"}
    step = StepBuffers(512, 4, 8, CPU).fill([Chunk([0] * 20, tokens - 20, [range(3)])])
    q = torch.randn(20, 2 * heads, size)
    found = {}
    for b in (None, bits):
        cache = Cache(
            CacheSpec([LayerSpec({"k": (heads, size), "v": (heads, size)})], torch.float32, b), 3, CPU
        ).layers[0]
        for name, values in rows.items():
            cache.write(name, torch.arange(tokens), values)
        found[b] = (
            TorchOps().attend(q, Attention(size**-0.5), cache, step),
            cache.read("k", torch.arange(3), torch.float32),
        )
    worst = (found[bits][1] - found[None][1]).flatten(0, 1)[:tokens].norm(dim=-1).max()
    score = worst * q.norm(dim=-1).max() * size**-0.5
    spread, largest = torch.expm1(2 * score), rows["v"].abs().max()
    half_step = largest / 127 if bits == 8 else 2 * largest / 15
    assert (found[bits][0] - found[None][0]).abs().max() < spread * largest + half_step
    assert (found[bits][0] - found[None][0]).norm() / found[None][0].norm() < (0.015 if bits == 8 else 0.15)


class Rounded(LayerCache):
    """An exact cache of rows that went through the format before they were written."""

    bits: int

    def write(self, name: str, slots: torch.Tensor, rows: torch.Tensor) -> None:
        rounded = unpack(name, pack(name, rows, self.bits), rows.shape[-1], self.bits, rows.dtype)
        super().write(name, slots, rounded)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_packed_cache_is_an_exact_one_of_rounded_rows(family: str, bits: int, models: dict[str, Path]) -> None:
    expected = LLM(models[family], dtype="float32", backend="torch")  # calls `write`; our kernel writes by itself
    packed = LLM(models[family], dtype="float32", kv=f"int{bits}")
    exact = expected.logits(PROMPTS[1])
    cache = expected.engine.executor.cache
    kind = type("Rounded", (Rounded,), {"bits": bits})
    cache.layers = [kind(layer.layer, layer.group, layer.rows, layer.spec) for layer in cache.layers]
    rounded = expected.logits(PROMPTS[1])
    torch.testing.assert_close(packed.logits(PROMPTS[1]), rounded, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(rounded, exact, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("kv", "bound"), [("int8", 0.012), ("int4", 0.12)])
def test_logits_near_the_exact_caches(kv: str, bound: float) -> None:
    name = "random:stories15M,layers=2"
    exact, packed = (LLM(name, dtype="float32", kv=each).logits(PROMPTS[1]) for each in ("auto", kv))
    assert 0 < (packed - exact).norm() / exact.norm() < bound


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("family", ["llama", "deepseek-v3"])
def test_batches_chunks_and_prefixes_are_each_sequence_alone(family: str, bits: int, models: dict[str, Path]) -> None:
    """Deterministically to the bit: what a token stores does not depend on the rest of the step."""
    model = LLM(models[family], dtype="float32").model
    params = SamplingParams(temperature=0.0, max_new_tokens=5, ignore_eos=True)

    def engine(max_tokens: int) -> Engine:
        executor = ResidentExecutor(model, CpuOps(deterministic=True), 16, 8, max_tokens, cache_bits=bits)
        return Engine(executor, 8, max_tokens, 512)

    alone = [drain(engine(512), [request(prompt, params)])[0] for prompt in PROMPTS]
    together, chunked = engine(512), engine(33)
    for each in (together, chunked):
        assert drain(each, [request(prompt, params) for prompt in PROMPTS], check_pages) == alone
    again = [request(prompt, params) for prompt in PROMPTS]  # whole pages are shared, the last ones copied
    assert drain(together, again, check_pages) == alone


def test_reference_batches_agree(models: dict[str, Path]) -> None:
    greedy = SamplingParams(temperature=0.0, max_new_tokens=16, ignore_eos=True)
    for kv in ("int8", "int4"):
        llm = LLM(models["llama"], dtype="float32", kv=kv)
        together = [result.ids for result in llm.generate(PROMPTS, greedy)]
        again = [result.ids for result in llm.generate(PROMPTS, greedy)]
        fresh = [LLM(models["llama"], dtype="float32", kv=kv).generate([p], greedy)[0].ids for p in PROMPTS]
        assert together == again == fresh


@pytest.mark.parametrize("bits", [8, 4])
def test_pages_are_copied_and_wiped_whole(bits: int) -> None:
    spec = CacheSpec([LayerSpec({"k": (2, 33)})] * 2, torch.float32, bits)
    cache = Cache(spec, 3, CPU)
    rows = torch.randn(PAGE, 2, 33)
    for layer in cache.layers:
        layer.write("k", torch.arange(PAGE), rows)
    cache.copy(0, 2, 40)
    read = cache.layers[1].read("k", torch.tensor([0, 2]), torch.float32)
    assert torch.equal(read[0, :40], read[1, :40]) and not read[1, 40:].any()
    cache.clear([0, 2])
    assert not any(tensor.any() for tensor in cache.rows.values())


def test_bytes_of_a_token() -> None:
    heads = CacheSpec([LayerSpec({"k": (8, 128), "v": (8, 128)})], torch.bfloat16)
    assert heads.page_bytes == PAGE * 2 * 8 * 128 * 2
    bits = {b: CacheSpec(heads.layers, heads.dtype, b).page_bytes // PAGE for b in (8, 4)}
    assert bits == {8: 2 * 8 * (128 + 2), 4: 2 * 8 * (64 + 4 * 8)}
    v3 = read_config(named_shape("deepseek-v3"), "v3")
    assert cache_layers(v3)[0].rows == {"latent": (576,)}
    assert entries("latent", (576,), 8)["latent.scale"][0] == (3,), "the rotary key has a scale of its own"
    assert entries("k", (8, 128), 4)["k.minimum"] == ((8, 8), torch.float16)


def test_the_budget_knows_the_format(models: dict[str, Path]) -> None:
    checkpoint = open_checkpoint(str(models["llama"]))
    page = CacheSpec(llama.cache_layers(checkpoint.config), torch.float32).page_bytes
    budget = (Loader(checkpoint, torch.float32, torch.device("cpu")).total_bytes() + 2.5 * page) / 1e9
    sizes = [
        LLM(models["llama"], dtype="float32", kv=kv, cpu_mem=budget).max_context for kv in ("auto", "int8", "int4")
    ]
    assert sizes == [2 * PAGE, 8 * PAGE, 8 * PAGE]
