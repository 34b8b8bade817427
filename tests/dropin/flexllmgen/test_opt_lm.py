"""OptLM's tokens: transformers' on the same weights, and those of FlexLLMGen's own code on a CPU."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from text.families import greedy

from genwright.errors import UserError

ORIGINAL = os.environ.get("GENWRIGHT_FLEXLLMGEN")
PAD, NEW = 1, 12


def prompts(batch: int, length: int = 24) -> np.ndarray:
    """Random prompts of different lengths, padded on the left."""
    draw = np.random.default_rng(0)
    rows = draw.integers(4, 260, (batch, length))
    for i, row in enumerate(rows):
        row[: 5 * i % length] = PAD
    return rows


def make(tiny, batches: tuple[int, int] = (4, 1), percent=(100, 0, 100, 0, 100, 0), dtype=np.float32, **changes: Any):
    from flexllmgen.flex_opt import CompressionConfig, ExecutionEnv, OptLM, Policy

    env = ExecutionEnv.create(str(tiny.path / "offload"))
    groups = [CompressionConfig(4, 64, axis, False) for axis in (0, 2)]
    policy = Policy(*batches, *percent, True, True, False, False, 1.0, False, groups[0], False, groups[1])
    policy = type(policy)(**{**vars(policy), **changes})
    return OptLM(tiny.config(dtype=dtype), env, str(tiny.path), policy)


def test_greedy_tokens_are_those_of_transformers(tiny) -> None:
    rows = prompts(4)
    output = make(tiny, (2, 2)).generate(rows, max_new_tokens=NEW)
    assert output.dtype == np.int32
    assert (output[:, : rows.shape[1]] == rows).all()
    for row, after in zip(rows, output[:, rows.shape[1] :], strict=True):
        assert after.tolist() == greedy(tiny.model, row[row != PAD].tolist(), NEW)
