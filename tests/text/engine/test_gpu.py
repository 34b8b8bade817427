"""The whole engine on a GPU: every backend, weight and cache format, and what deterministic mode promises."""

import random

import pytest
import torch
from text.drafts.setup import proposed

from genwright import LLM, SamplingParams
from genwright.text.cache.pages import SequencePages
from genwright.text.engine.cuda_graphs import MIN_BUCKET, prompt_rows
from genwright.text.engine.executor import ResidentExecutor
from genwright.text.ops.step import Chunk

pytestmark = pytest.mark.gpu
TINY = "random:tinyllama-1.1b,layers=2"
GREEDY = SamplingParams(max_new_tokens=24, ignore_eos=True)


def prompts(count: int, high: int = 150) -> list[list[int]]:
    rng = random.Random(count)
    return [[rng.randrange(3, 30_000) for _ in range(rng.randint(1, high))] for _ in range(count)]


def gpu(dtype: str = "float32", **settings) -> LLM:
    return LLM(TINY, device="cuda", dtype=dtype, max_context=1024, gpu_mem=8, **settings)


@pytest.fixture(scope="module")
def cpu_tokens() -> list[list[int]]:
    llm = LLM(TINY, device="cpu", dtype="float32", max_context=1024)
    return [result.ids for result in llm.generate(prompts(5), GREEDY)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"backend": "torch"},
        {"graph": False},
        {"deterministic": True},
        {"backend": "inductor"},
        {"draft": "prompt-lookup"},
    ],
    ids=str,
)
def test_float32_greedy_tokens_are_the_cpu_references(settings, cpu_tokens):
    llm = gpu(**settings)
    assert [result.ids for result in llm.generate(prompts(5), GREEDY)] == cpu_tokens, "together"
    assert [llm.generate([prompt], GREEDY)[0].ids for prompt in prompts(5)] == cpu_tokens, "one by one"


def test_windows_and_their_freed_pages_give_the_cpu_references_tokens():
    """Gemma 3: five local layers to a global one, past the window of 512 tokens."""
    text = [token for prompt in prompts(40) for token in prompt]
    cpu, cuda = (
        LLM("random:gemma-3-270m,layers=6", device=device, dtype="float32", max_context=2048, **memory)
        for device, memory in (("cpu", {}), ("cuda", {"gpu_mem": 4}))
    )
    texts = [text[:1900], text[7:600], text[:1200]]
    assert [r.ids for r in cuda.generate(texts, GREEDY)] == [r.ids for r in cpu.generate(texts, GREEDY)]


MIXTURE = "random:qwen1.5-moe-a2.7b,layers=2"  # 60 experts, four of them a token's, and shared ones


@pytest.fixture(scope="module")
def mixture_tokens() -> list[list[int]]:
    llm = LLM(MIXTURE, device="cpu", dtype="float32", max_context=1024)
    return [result.ids for result in llm.generate(prompts(5), GREEDY)]


@pytest.mark.parametrize("settings", [{}, {"graph": False}, {"deterministic": True}], ids=str)
def test_a_mixtures_greedy_tokens_are_the_cpu_references(settings, mixture_tokens):
    llm = LLM(MIXTURE, device="cuda", dtype="float32", max_context=1024, gpu_mem=16, **settings)
    assert [result.ids for result in llm.generate(prompts(5), GREEDY)] == mixture_tokens, "together"
    assert [llm.generate([prompt], GREEDY)[0].ids for prompt in prompts(5)] == mixture_tokens, "one by one"


LATENT = "random:deepseek-v2-lite,layers=3"  # a dense layer, then 64 experts, six of them a token's


@pytest.fixture(scope="module")
def latent_tokens() -> list[list[int]]:
    llm = LLM(LATENT, device="cpu", dtype="float32", max_context=1024)
    return [result.ids for result in llm.generate(prompts(5), GREEDY)]


@pytest.mark.parametrize(
    "settings", [{}, {"graph": False}, {"draft": "prompt-lookup"}, {"deterministic": True}], ids=str
)
def test_latent_attentions_greedy_tokens_are_the_cpu_references(settings, latent_tokens):
    llm = LLM(LATENT, device="cuda", dtype="float32", max_context=1024, gpu_mem=16, **settings)
    assert [result.ids for result in llm.generate(prompts(5), GREEDY)] == latent_tokens, "together"
    assert [llm.generate([prompt], GREEDY)[0].ids for prompt in prompts(5)] == latent_tokens, "one by one"


@pytest.mark.parametrize("model", [MIXTURE, LATENT])
@pytest.mark.parametrize("quant", [None, "int8", "int4", "fp8"])
def test_a_mixtures_formats_agree_with_the_torch_backend(quant, model):
    ours, theirs = (
        LLM(model, device="cuda", dtype="bfloat16", quant=quant, max_context=512, gpu_mem=16, backend=backend)
        for backend in ("triton", "torch")
    )
    for count in (1, 8, 40, 100):
        logits = [llm.logits(list(range(100, 100 + count))) for llm in (ours, theirs)]
        assert (logits[0] - logits[1]).norm() < 0.05 * logits[1].norm()


@pytest.mark.parametrize("quant", [None, "int8", "int4", "int4:g64:asym", "fp8"])
def test_formats_agree_with_the_torch_backend(quant):
    fused, plain = gpu("bfloat16", quant=quant), gpu("bfloat16", quant=quant, backend="torch")
    ids = list(range(100, 300))
    for count in (1, 5, 30, 200):  # one token, few, a chunk, and one whose weights are unpacked before the product
        ours, theirs = fused.logits(ids[:count]), plain.logits(ids[:count])
        assert (ours - theirs).norm() < 0.03 * theirs.norm()


@pytest.mark.parametrize("kv", ["int8", "int4"])
def test_cache_formats_agree_with_the_torch_backend(kv):
    fused, plain = gpu(kv=kv), gpu(kv=kv, backend="torch")
    for ids in prompts(3, 200):
        ours, theirs = fused.logits(ids), plain.logits(ids)
        assert (ours - theirs).norm() < 2e-3 * theirs.norm()
    ours, theirs = (llm.generate(prompts(4), GREEDY) for llm in (fused, plain))
    assert sum(a.ids == b.ids for a, b in zip(ours, theirs, strict=True)) >= 3  # a tie may fall otherwise


@pytest.mark.parametrize("quant", [None, "int4"])
def test_deterministic_logits_are_bitwise_alone_in_a_batch_and_chunked(quant):
    llm = gpu("bfloat16", quant=quant, deterministic=True)
    texts = prompts(16, 120)
    executor, page = llm.engine.executor, 0
    pages = []
    for text in texts:
        count = -(-len(text) // 64)
        pages.append([list(range(page, page + count))])
        page += count
    order = sorted(range(16), key=lambda i: len(texts[i]))
    together = executor.run([Chunk(texts[i], 0, pages[i]) for i in order])
    for row, i in enumerate(order):
        alone = executor.run([Chunk(texts[i], 0, pages[i])])
        assert torch.equal(alone[0], together[row]), "alone"
        for start in range(0, len(texts[i]), 17):
            chunked = executor.run([Chunk(texts[i][start : start + 17], start, pages[i])])
        assert torch.equal(chunked[0], together[row]), "chunked"
        for start in range(max(0, len(texts[i]) - 3), len(texts[i])):
            stepped = executor.run([Chunk(texts[i][start : start + 1], start, pages[i])])
        assert torch.equal(stepped[0], together[row]), "token by token"


@pytest.mark.parametrize(
    ("settings", "tolerance"), [({}, 1e-4), ({"deterministic": True}, 0), ({"kv": "int8"}, 1e-2)], ids=str
)
@pytest.mark.parametrize("model", [TINY, MIXTURE, "random:gemma-3-270m,layers=6", "random:opt-125m,layers=2"])
def test_prompt_chunks_beside_decoding_have_the_same_logits_in_a_graph(model, settings, tolerance):
    llm = LLM(model, device="cuda", dtype="float32", max_context=1024, gpu_mem=16, **settings)
    executor = llm.engine.executor
    groups = len(executor.cache.spec.groups)
    for turn, (decoding, sizes, wanted) in enumerate([(3, (70, 40), 1), (5, (97,), 0), (16, (9, 30, 150), 1)]):
        texts = prompts(decoding + turn, 100)[:decoding]
        prompt_texts = [[(7 * turn + 31 * token) % 30_000 for token in range(size)] for size in sizes]
        pages = [[[2 * place + 1, 2 * place + 2]] * groups for place in range(decoding + len(sizes))]
        for text, own in zip(texts, pages, strict=False):
            executor.run([Chunk(text[:-1] or text, 0, own)])
        steps = [Chunk(text[-1:], len(text) - 1, own) for text, own in zip(texts, pages, strict=False)]
        steps += [Chunk(text, 0, own, logits=wanted) for text, own in zip(prompt_texts, pages[decoding:], strict=True)]
        expected = ResidentExecutor.run(executor, steps)
        for _ in range(3):  # without a graph, captured, and replayed
            assert (executor.run(steps) - expected).norm() <= tolerance * expected.norm()
        assert executor._mixed[executor.bucket(MIN_BUCKET), prompt_rows(sum(sizes))] is not None


def test_sampled_tokens_do_not_depend_on_the_batch_or_the_graph():
    params = [SamplingParams(max_new_tokens=20, temperature=0.9, top_k=50, top_p=0.9, seed=i) for i in range(6)]
    llm = gpu(deterministic=True)
    together = [result.ids for result in llm.generate(prompts(6), params)]
    assert [llm.generate([p], s)[0].ids for p, s in zip(prompts(6), params, strict=True)] == together
    assert [r.ids for r in gpu(deterministic=True, graph=False).generate(prompts(6), params)] == together


@pytest.mark.parametrize("model", [TINY, "random:gemma-3-270m,layers=7"])
def test_a_draft_proposes_in_a_graph_what_it_proposes_step_by_step(model, monkeypatch):
    """Also across the end of a page, with other counts beside it, and twice with the same graph."""
    llm = LLM(model, draft=model, device="cuda", dtype="float32", max_context=1024, gpu_mem=8)
    draft, sampler = llm.engine.speculation.draft, llm.engine.sampler
    params = [SamplingParams(max_new_tokens=99, temperature=t, top_k=50, seed=3) for t in (0.0, 0.9, 0.9, 0.9, 0.0)]
    texts = [text * 3 for text in ([5, 6, 7], prompts(1)[0], [9] * 21, [8, 4] * 10 + [7], prompts(2)[1])]
    requests = [llm.requests(text[:90], p)[0] for text, p in zip(texts, params, strict=True)]
    for each in requests:
        each.pages = SequencePages([0])
    for counts in ((5, 5, 5, 5, 5), (1, 4, 5, 2, 3), (1, 1, 1, 1, 1)):
        wanted = list(zip(requests, counts, strict=True))
        graphed = proposed(draft, wanted, sampler)
        with monkeypatch.context() as patch:
            patch.setattr(draft.executor, "decode", lambda *_: None)
            assert graphed == proposed(draft, wanted, sampler)
        assert [len(tokens) for tokens in graphed] == list(counts)


def test_a_draft_that_goes_on_while_the_model_verifies_agrees_with_itself():
    params = [SamplingParams(max_new_tokens=150, temperature=t, seed=3, ignore_eos=True) for t in (0.0, 0.9, 0.9)]
    plain, drafted = gpu(), gpu(draft=TINY)
    drafted.engine.speculation.draft.cost = 0.1  # as if it were a smaller model
    results = drafted.generate(prompts(3), params)
    assert [result.ids for result in results] == [result.ids for result in plain.generate(prompts(3), params)]
    for result in results:
        assert sum(result.acceptance.accepted) > 0.97 * sum(result.acceptance.drafted) > 100


def gemma(backend, dtype):
    """Gemma 3's shape, whose layers have page tables of two kinds."""
    options = {"device": "cuda", "dtype": dtype, "max_context": 1024, "gpu_mem": 8, "backend": backend}
    return LLM("random:gemma-3-270m,layers=7", **options)


def beyond_the_window():
    """Token ids of a prompt that is longer than Gemma 3's window of 512."""
    return [token for text in prompts(60) for token in text][:620]


def test_layers_with_and_without_a_window_have_page_tables_of_their_own():
    ours, theirs, ids = gemma("triton", "float32"), gemma("torch", "float32"), beyond_the_window()
    assert (ours.logits(ids) - theirs.logits(ids)).norm() < 1e-3 * theirs.logits(ids).norm()
    assert ours.generate([ids], GREEDY)[0].ids == theirs.generate([ids], GREEDY)[0].ids


def test_windows_in_bfloat16_are_as_far_from_float32_as_plain_pytorch_is():
    ids = beyond_the_window()
    exact = gemma("torch", "float32").logits(ids)
    ours, theirs = ((gemma(backend, "bfloat16").logits(ids) - exact).norm() for backend in ("triton", "torch"))
    assert ours < 1.2 * theirs
