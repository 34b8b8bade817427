"""Bytes and operations, counted another way."""

import pytest
import torch
from text.families import make
from torch.utils.flop_counter import FlopCounterMode

from genwright import LLM
from genwright.bench.experiments import Point
from genwright.bench.work import operations, work_of

TOKENS = 40


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3", "mixtral", "deepseek-v3", "opt"])
def test_weights_and_operations_against_transformers(family, tmp_path):
    theirs = make(family, tmp_path)
    llm = LLM(tmp_path, device="cpu", dtype="float32")
    model, cfg = llm.model, llm.model.cfg
    tied = theirs.config.tie_word_embeddings
    looked_up = ("embed_tokens", "embed_positions")
    parameters = {
        name: tensor.numel()
        for name, tensor in theirs.named_parameters()
        if tied or not any(word in name for word in looked_up)
    }
    if family == "opt":  # whose head is the embedding of tokens, while positions are looked up
        parameters = {name: count for name, count in parameters.items() if "embed_positions" not in name}
    experts = sum(count for name, count in parameters.items() if ".experts." in name)
    share = cfg.moe.top_k / cfg.moe.experts if cfg.moe else 1
    extra = cfg.moe.experts * sum(cfg.moe.layers) if cfg.moe and cfg.moe.correction_bias else 0  # a buffer there
    dense = sum(parameters.values()) - experts + extra
    assert model.bytes_read(1) == pytest.approx(4 * (dense + experts * share), rel=1e-9)
    assert model.bytes_read(10_000) == pytest.approx(4 * (dense + experts), rel=1e-6)  # everyone is visited
    if cfg.moe is not None or family == "opt":
        return  # experts run in grouped products, which the counter does not see; OPT's norms are vectors like these
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        theirs(torch.ones(1, TOKENS, dtype=torch.int64), logits_to_keep=1)
    squares = 4 * TOKENS**2 * cfg.q_dim * cfg.layers  # transformers' eager attention computes masked pairs too
    window = min(TOKENS, cfg.windows[0] or TOKENS)
    pairs = sum(min(position + 1, window) for position in range(TOKENS))
    vectors = sum(count for name, count in parameters.items() if "norm" in name)
    ours = operations(model, TOKENS, TOKENS) - 4 * pairs * cfg.q_dim * cfg.layers
    final_norm = cfg.dim  # vectors are counted as weights too; they are next to nothing
    assert ours - 2 * (vectors - final_norm) * TOKENS == pytest.approx(
        counter.get_total_flops() - squares + 2 * final_norm * TOKENS, rel=1e-9
    )


def test_a_window_bounds_what_is_read_of_the_cache(tmp_path):
    make("mistral", tmp_path)
    llm = LLM(tmp_path, device="cpu", dtype="float32")
    cfg = llm.model.cfg
    row = 2 * cfg.kv_dim * 4 * cfg.layers  # bytes of a token's keys and values
    assert work_of(llm, Point(3, 10, 4)).cache == 3 * 12 * row
    assert work_of(llm, Point(1, 100, 4)).cache == 24 * row
