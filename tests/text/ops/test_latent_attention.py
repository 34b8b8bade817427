"""The absorbed and expanded forms of latent attention against its definition, and the rows of its cache."""

import pytest
import torch

from genwright.kernels import PAGE
from genwright.text.architectures.deepseek import cache_layers
from genwright.text.architectures.registry import named_shape, read_config
from genwright.text.cache.layout import CacheSpec, LayerCache, LayerSpec
from genwright.text.config import Mla
from genwright.text.ops.attention import gather
from genwright.text.ops.latent_attention import absorbed, expanded, prefer_expanded
from genwright.text.ops.step import Chunk, StepBuffers

HEADS = 4
MLA = Mla(None, kv_lora_rank=24, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10, rope_interleave=True)


@pytest.mark.parametrize("lengths", [[(0, 1)], [(130, 1)], [(0, 70)], [(64, 33), (10, 33)], [(200, 1), (3, 1)]])
def test_absorbed_equals_expanded_and_the_definition(lengths):
    torch.manual_seed(0)
    step = StepBuffers(512, 4, 8, torch.device("cpu")).fill(
        [Chunk([0] * count, start, [range(i * 8, i * 8 + 8)]) for i, (start, count) in enumerate(lengths)]
    )
    rows = torch.randn(32, PAGE, 24 + 8)
    kv_b = torch.randn(HEADS * 22, 24) / 5
    q = torch.randn(len(step.tokens), HEADS, 20)
    (group,) = step.groups
    cache = LayerCache(0, 0, {"latent": rows}, CacheSpec([LayerSpec({"latent": (24 + 8,)})], torch.float32))
    latent = gather(cache, "latent", group, step, torch.float32)
    one = absorbed(q, kv_b, latent, MLA, group, step, 0.3)
    other = expanded(q, kv_b, latent, MLA, group, step, 0.3)
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    row = 0
    for i, (start, count) in enumerate(lengths):
        cached = rows[i * 8 : i * 8 + 8].flatten(0, 1).double()
        up = (cached[:, :24] @ kv_b.double().T).view(-1, HEADS, 22)
        for position in range(start, start + count):
            for head in range(HEADS):
                k = torch.cat((up[: position + 1, head, :12], cached[: position + 1, 24:]), dim=-1)
                weight = (k @ q[row, head].double() * 0.3).softmax(0)
                torch.testing.assert_close(
                    one[row, head].double(), weight @ up[: position + 1, head, 12:], rtol=1e-4, atol=1e-5
                )
            row += 1


def test_decoding_is_absorbed_and_a_whole_prompt_expanded():
    cfg = read_config(named_shape("deepseek-v3"), "v3")

    def expands(start: int, count: int) -> bool:
        step = StepBuffers(8192, 1, 1024, torch.device("cpu")).fill([Chunk([0] * count, start, [range(1024)])])
        return prefer_expanded(step.groups[0], cfg.mla)

    assert not expands(4096, 1) and not expands(4096, 6) and not expands(8000, 64)
    assert expands(0, 512) and expands(4096, 512)


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2", "deepseek-v2-lite"])
def test_a_token_stores_one_latent_and_one_rotary_key_per_layer(name):
    cfg = read_config(named_shape(name), name)
    assert CacheSpec(cache_layers(cfg), torch.bfloat16).page_bytes == PAGE * cfg.layers * (512 + 64) * 2
