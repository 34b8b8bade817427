"""Loading: what is held in memory meanwhile, what is reported, and random weights."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from text.families import make

from genwright import LLM
from genwright.errors import UserError
from genwright.text.checkpoints import open_checkpoint
from genwright.text.checkpoints.convert import convert
from genwright.text.checkpoints.gguf import LAYER, OUTER
from genwright.text.models import load_model

# The growth of anonymous memory while a model loads, at its peak and in the end, beside what the model needs.
MEASURE = """
import json, sys, threading, time
import torch

torch.set_num_threads(1)
from genwright import LLM
from genwright.text.checkpoints import open_checkpoint
from genwright.text.models import load_model


def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))


def sample():
    while not done.is_set():
        peaks.append(anonymous())
        time.sleep(0.002)


warm, path, dtype = sys.argv[1:]
LLM(warm, device="cpu", dtype=dtype).logits([1, 2, 3])
before, peaks, done = anonymous(), [], threading.Event()
thread = threading.Thread(target=sample)
thread.start()
llm = LLM(path, device="cpu", dtype=dtype)
done.set()
thread.join()
weights = [weight for part in (llm.model.outer, *llm.model.blocks) for weight in part.values()]
largest = max(weight.nbytes for weight in weights)
report = {"peak": max(peaks) - before, "end": anonymous() - before, "samples": len(peaks)}
print(json.dumps({**report, "size": llm.model.weight_bytes, "largest": largest}))
"""


@pytest.fixture(scope="module")
def large(full_size: bool) -> str:
    """1.2 GB in bfloat16, or 160 MB."""
    return "random:tinyllama-1.1b,layers=10" if full_size else "random:stories110M,layers=4"


@pytest.fixture(scope="module")
def sources(large: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The large model in every format; quantized for GGUF."""
    folder = tmp_path_factory.mktemp("large")
    checkpoint = open_checkpoint(large)
    for form in ("safetensors", "gptfast"):
        convert(checkpoint, folder / form, form, torch.bfloat16, lambda done, total: None)
    return {"safetensors": folder / "safetensors", "pth": folder / "gptfast", "gguf": write_q8(checkpoint, folder)}
