"""A draft model on a GPU, whose steps are one CUDA graph each."""

import pytest
from text.drafts.setup import proposed
from text.engine.gpu_models import TINY, gpu, prompts

from genwright import LLM, SamplingParams
from genwright.text.cache.pages import SequencePages

pytestmark = pytest.mark.gpu


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
