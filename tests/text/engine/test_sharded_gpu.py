"""Ranks on one GPU: gloo over CUDA tensors without graphs, and NCCL with one rank inside a graph."""

from pathlib import Path
from typing import Any

import pytest
import torch
from text.families import make

from genwright import LLM, SamplingParams
from genwright.parallel.ranks import Ranks, meet
from genwright.text.build import build_engine, open_model
from genwright.text.engine.cuda_graphs import GraphExecutor
from genwright.text.engine.request import Request
from genwright.text.settings import EngineConfig
from genwright.text.worker import MODULE

pytestmark = pytest.mark.gpu
PROMPTS = [[1, 5, 9, 20, 3], [7, 8] * 20]
PARAMS = SamplingParams(max_new_tokens=24, ignore_eos=True)
SETTINGS: dict[str, Any] = {"device": "cuda", "dtype": "float32", "gpu_mem": 2.0}
SIZES = {"vocab_size": 200, "intermediate_size": 128, "head_dim": 32}


@pytest.mark.parametrize("settings", [{"tp": 2}, {"pp": 2}])
def test_two_ranks_of_gloo_share_a_gpu(settings: dict[str, Any], tmp_path: Path) -> None:
    make("llama", tmp_path, SIZES)
    with LLM(tmp_path, **SETTINGS) as one:
        expected = [result.ids for result in one.generate(PROMPTS, PARAMS)]
    with LLM(tmp_path, **SETTINGS, **settings) as two:
        assert [result.ids for result in two.generate(PROMPTS, PARAMS)] == expected


def test_one_rank_of_nccl_runs_inside_the_graph(tmp_path: Path) -> None:
    make("llama", tmp_path, SIZES)
    config = EngineConfig(**SETTINGS)
    with LLM(tmp_path, config) as one:
        expected = one.generate(PROMPTS[:1], PARAMS)[0].ids
    ranks: Ranks = meet(1, MODULE, 1)
    engine = build_engine(
        open_model(tmp_path, config), config, torch.device("cuda", 0), lambda done, total: None, ranks
    )
    assert ranks.on_device and isinstance(engine.executor, GraphExecutor) and engine.executor.max_graph_tokens
    request = Request(PROMPTS[0], PARAMS, seed=0)
    engine.submit(request)
    while engine.busy():
        engine.step()
    assert request.output == expected
    engine.close()
