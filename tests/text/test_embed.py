"""Embeddings against the hidden states that transformers computes."""

from pathlib import Path

import pytest
import torch
from text.families import make

from genwright import LLM
from genwright.errors import UserError

PROMPTS = [[5, 6, 7, 8, 9], [11], list(range(20, 150))]


@pytest.mark.parametrize("family", ["llama", "opt", "gemma3", "deepseek-v3"])
def test_embeddings_are_pooled_hidden_states(family: str, tmp_path: Path) -> None:
    theirs = make(family, tmp_path)
    with LLM(tmp_path, device="cpu", dtype="float32", max_step_tokens=64) as llm, torch.no_grad():
        for pooling in ("mean", "last"):
            ours = llm.embed(PROMPTS, pooling)
            for ids, vector in zip(PROMPTS, ours, strict=True):
                hidden = theirs(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0]
                pooled = hidden.mean(0) if pooling == "mean" else hidden[-1]
                torch.testing.assert_close(vector, torch.nn.functional.normalize(pooled, dim=-1), atol=1e-4, rtol=1e-3)
        assert torch.equal(llm.embed([5, 6, 7, 8, 9])[0], llm.embed(PROMPTS)[0])
        assert llm.embed([]).shape == (0, ours.shape[1])
        with pytest.raises(UserError, match="pooling must be one of mean, last"):
            llm.embed(PROMPTS, "first")
        with pytest.raises(UserError, match="at least one token"):
            llm.embed([[]])


def test_what_has_no_embeddings_is_one_sentence(tmp_path: Path) -> None:
    with (
        LLM("random:stories15m,layers=2", device="cpu", offload="0,100,100,0,100,0", offload_dir=str(tmp_path)) as llm,
        pytest.raises(UserError, match="without offload"),
    ):
        llm.embed([[1, 2]])
