"""Small models on the triton backend of an emulated GPU: greedy tokens and logits are the torch backend's."""

import pytest
import torch
from kernels.products import EMULATED

from genwright.kernels.cuda import nvrtc
from genwright.quant.formats import parse_format
from genwright.text.checkpoints import random
from genwright.text.engine.executor import ResidentExecutor
from genwright.text.loader import Loader
from genwright.text.ops.step import Chunk
from genwright.text.ops.torch_ops import TorchOps
from genwright.text.ops.triton_ops import TritonOps

pytestmark = pytest.mark.skipif(not EMULATED, reason="test_gpu.py has larger models")
SMALL = {
    "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64,
    "vocab_size": 320, "num_hidden_layers": 2,
}  # fmt: skip
MIXTURE = {**SMALL, "intermediate_size": 128}
WIDE = {**SMALL, "hidden_size": 2048, "intermediate_size": 2304, "num_hidden_layers": 1}  # for packed_skinny.cu
LATENT = {
    "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "vocab_size": 320, "num_hidden_layers": 2,
    "moe_intermediate_size": 64, "n_routed_experts": 6, "first_k_dense_replace": 1, "num_experts_per_tok": 3,
    "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
}  # fmt: skip
DENSE, ALONE = {"gemv", "grouped_decode_attention"}, {"gemv", "decode_attention"}
SKINNY = DENSE | {"skinny"}
PACKED = SKINNY | {"packed_wgmma"}
# Of each case: a named shape, what is changed of it, a weight format, and the CUDA kernels that it needs.
CASES = {
    "llama": ("llama-3.1-8b", SMALL, None, DENSE),
    "as many key heads as query heads": ("llama-2-7b", {**SMALL, "num_key_value_heads": 4}, None, ALONE),
    "gemma": ("gemma-3-1b", SMALL, None, DENSE),
    "mixture": ("mixtral-8x7b", MIXTURE, None, DENSE),
    "latent attention": ("deepseek-v2-lite", LATENT, None, {"gemv"}),
    "int8": ("llama-3.1-8b", SMALL, "int8", PACKED),
    "wide int4": ("llama-3.1-8b", WIDE, "int4", PACKED | {"packed_skinny"}),
    "wide int4 with minimums": ("llama-3.1-8b", WIDE, "int4:asym", PACKED | {"packed_skinny"}),
    "wide int8": ("qwen2.5-0.5b", WIDE, "int8", PACKED | {"packed_skinny"}),
    "fp8": ("llama-3.1-8b", SMALL, "fp8", SKINNY | {"mma"}),
    "int8 mixture": ("mixtral-8x7b", MIXTURE, "int8", PACKED),
}
PROMPTS = [list(range(5, 25)), [200, 3], [77]]
TOKENS = 4


def drawn(executor: ResidentExecutor, follow: list[list[int]] | None = None) -> tuple[list[list[int]], torch.Tensor]:
    """Greedy tokens of all prompts together and then of the first one alone, or those to follow; and all logits."""
    tokens, rows = [list(prompt) for prompt in PROMPTS], []
    starts = [0] * len(PROMPTS)
    for step in range(TOKENS + 2):
        together = range(len(PROMPTS)) if step < TOKENS else range(1)
        tables = [[[i + 1]] * len(executor.buffers.slots) for i in together]
        chunks = [Chunk(tokens[i][starts[i] :], starts[i], tables[i]) for i in together]
        logits = executor.run(chunks).float().clone()
        for i, best in zip(together, logits.argmax(dim=1).tolist(), strict=True):
            starts[i] = len(tokens[i])
            tokens[i].append(best if follow is None else follow[i][len(tokens[i])])
        rows.append(logits)
    return tokens, torch.cat(rows)


@pytest.mark.parametrize("case", CASES)
def test_greedy_tokens_and_logits_are_the_torch_backends(case, cuda_device, monkeypatch):
    name, changes, quant, kernels = CASES[case]
    monkeypatch.setattr(nvrtc, "_codes", {})  # what is compiled is found there
    nvrtc._loaded_kernel.cache_clear()
    shape = random.named_shape
    monkeypatch.setattr(random, "named_shape", lambda name: {**shape(name), **changes})
    # Triton's interpreter does not multiply bf16.
    dtype, device = torch.float32 if quant is None else torch.float16, torch.device(cuda_device)
    ops = TritonOps(device)
    ops._pdl = False  # Triton's interpreter does not have it
    form = None if quant is None else parse_format(quant)
    model = Loader(random.RandomWeights(f"random:{name}"), dtype, device, quant=form).model(128)
    ours, theirs = (ResidentExecutor(model, each, 5, 3, 32) for each in (ops, TorchOps()))
    tokens, want = drawn(theirs)
    got = drawn(ours, tokens)[1]
    assert (got - want).norm() < (1e-4 if quant is None else 0.02) * want.norm()
    if quant is None:
        assert drawn(ours)[0] == tokens
    assert {program.name for program in nvrtc._codes} == kernels
