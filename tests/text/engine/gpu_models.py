"""Models and prompts of the tests of whole engines on a GPU."""

import random

from genwright import LLM, SamplingParams

TINY = "random:tinyllama-1.1b,layers=2"
MIXTURE = "random:qwen1.5-moe-a2.7b,layers=2"  # 60 experts, four of them a token's, and shared ones
LATENT = "random:deepseek-v2-lite,layers=3"  # a dense layer, then 64 experts, six of them a token's
GREEDY = SamplingParams(max_new_tokens=24, ignore_eos=True)


def prompts(count: int, high: int = 150) -> list[list[int]]:
    rng = random.Random(count)
    return [[rng.randrange(3, 30_000) for _ in range(rng.randint(1, high))] for _ in range(count)]


def gpu(dtype: str = "float32", **settings) -> LLM:
    return LLM(TINY, device="cuda", dtype=dtype, max_context=1024, gpu_mem=8, **settings)
