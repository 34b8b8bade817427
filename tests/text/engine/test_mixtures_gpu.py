"""Mixtures of experts and latent attention on a GPU: tokens are the CPU's, and formats agree with plain PyTorch."""

import pytest
from text.engine.gpu_models import GREEDY, LATENT, MIXTURE, prompts

from genwright import LLM

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def mixture_tokens() -> list[list[int]]:
    llm = LLM(MIXTURE, device="cpu", dtype="float32", max_context=1024)
    return [result.ids for result in llm.generate(prompts(5), GREEDY)]


@pytest.mark.parametrize("settings", [{}, {"graph": False}, {"deterministic": True}], ids=str)
def test_a_mixtures_greedy_tokens_are_the_cpu_references(settings, mixture_tokens):
    llm = LLM(MIXTURE, device="cuda", dtype="float32", max_context=1024, gpu_mem=16, **settings)
    assert [result.ids for result in llm.generate(prompts(5), GREEDY)] == mixture_tokens, "together"
    assert [llm.generate([prompt], GREEDY)[0].ids for prompt in prompts(5)] == mixture_tokens, "one by one"


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
