"""Steps in CUDA graphs on a GPU: the same logits and tokens as without them."""

import pytest
from text.engine.gpu_models import MIXTURE, TINY, gpu, prompts

from genwright import LLM, SamplingParams
from genwright.text.engine.cuda_graphs import MIN_BUCKET, prompt_rows
from genwright.text.engine.executor import ResidentExecutor
from genwright.text.ops.step import Chunk

pytestmark = pytest.mark.gpu


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
