"""Dry runs of steps: they compile all kernels of the step that follows, also while the weights load."""

from functools import partial

import pytest
import torch
from absent_gpu import Compilations, run_without_interpreter, use_absent_gpu

from genwright.kernels.compile_ahead import KernelCompiler
from genwright.quant.formats import parse_format
from genwright.text.checkpoints import random
from genwright.text.engine.executor import ResidentExecutor
from genwright.text.engine.resident_executor import compile_decoding, compile_sampler, resident_executor
from genwright.text.loader import Loader
from genwright.text.ops.step import Chunk

SMALL = {
    "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64,
    "vocab_size": 320, "num_hidden_layers": 4,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 1}
CASES = {
    "llama": ("llama-2-7b", SMALL, None),
    "llama-int4": ("llama-3.1-8b", GROUPED, "int4"),
    "mixtral-int8": ("mixtral-8x7b", GROUPED, "int8"),
    "gemma": ("gemma-3-1b", {**GROUPED, "num_hidden_layers": 6}, None),
}
SIZES = 8, 128  # sequences and tokens of a step, at most


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_compiled_at_a_launch(case, tmp_path):
    run_without_interpreter(__file__, case, tmp_path)


def forward(executor: ResidentExecutor, tokens: int) -> torch.Tensor:
    tables = [[0, 1]] * len(executor.buffers.slots)
    step = executor.buffers.view(executor.buffers.write([Chunk([5] * tokens, 0, tables)]).for_graph())
    return executor.forward(step)


def main(case: str) -> None:
    gpu = use_absent_gpu()
    compilations = Compilations(gpu)
    from genwright.text.engine.cuda_graphs import GraphExecutor
    from genwright.text.ops.triton_ops import TritonOps

    name, sizes, quant = CASES[case]
    shape = random.named_shape
    random.named_shape = lambda name: {**shape(name), **sizes}
    device = torch.device("cpu")
    ops, checkpoint = TritonOps(device), random.RandomWeights(f"random:{name}")
    loader = Loader(checkpoint, torch.bfloat16, device, quant=None if quant is None else parse_format(quant))
    with KernelCompiler() as compiler:
        compile_sampler(compiler, ops, checkpoint.config.vocab_size, torch.bfloat16, device)
        model = loader.model(128, watch=partial(compile_decoding, compiler, ops, *SIZES, None))
    assert compilations.take() >= 6 and gpu.launches == 0 and compilations.threads == {"genwright-compile"}
    executor = resident_executor(model, ops, 2, *SIZES, graph=True)
    assert isinstance(executor, GraphExecutor)
    executor.draw_token()
    assert compilations.take() == 0 and gpu.launches > 4 * len(model.blocks)
    ahead = 0
    for tokens in (6, 20, 100):
        with KernelCompiler() as compiler:
            compiler.dry_run(lambda tokens=tokens: forward(executor, tokens))
        ahead += compilations.take()
        forward(executor, tokens)
        assert compilations.take() == 0
    assert ahead >= 6 and compilations.threads == {"genwright-compile"}


if __name__ == "__main__":
    import sys

    main(sys.argv[1])
