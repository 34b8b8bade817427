"""A model larger than its memory runs from disk, and takes its files with it."""

import os
import re
import resource
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from subprocess import PIPE
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from conftest import FULL_SIZE

from genwright import LLM, SamplingParams
from genwright.errors import UserError
from genwright.placement.tiers import Tier
from genwright.text.cache.layout import CacheSpec
from genwright.text.ops.step import Chunk

ROOT = Path(__file__).parents[3]
GREEDY = SamplingParams(max_new_tokens=8, ignore_eos=True)
PROMPTS = [[5, 6, 7], [9] * 70, [11, 12]]
ON_DISK, ALL_ON_DISK = "0,0,100,0,100,0", "0,0,0,0,0,0"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def deep_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many small blocks."""
    path = tmp_path_factory.mktemp("deep")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 199}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=24, max_position_embeddings=512)
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("policy", "pages"), [(ON_DISK, 4), ("0,0,0,0,0,0,micro_batch=1,micro_batches=3", 2)], ids=["weights", "all"]
)
def test_what_does_not_fit_is_read_from_disk(deep_model: Path, tmp_path: Path, policy: str, pages: int) -> None:
    with LLM(deep_model, device="cpu", dtype="float32", max_context=128) as llm:
        expected = [result.ids for result in llm.generate(PROMPTS, GREEDY)]
        weights = llm.model.step_bytes
        page = CacheSpec(llm.model.architecture.cache_layers(llm.model.cfg), llm.model.dtype).page_bytes
    budget = weights // 2 + pages * page
    with pytest.raises(UserError, match="may be used"):
        LLM(deep_model, device="cpu", dtype="float32", max_context=128, cpu_mem=budget / 1e9)
    settings = {"cpu_mem": budget / 1e9, "offload": policy, "offload_dir": str(tmp_path)}
    with LLM(deep_model, device="cpu", dtype="float32", max_context=128, **settings) as llm:
        assert [result.ids for result in llm.generate(PROMPTS, GREEDY)] == expected
        held = llm.engine.executor.tiers.use.held
        assert held[Tier.GPU] + held[Tier.CPU] <= budget and held[Tier.DISK] > weights // 2
        assert len(list(tmp_path.iterdir())) == 1
    assert not list(tmp_path.iterdir()), "closing removes what is on disk"


def test_a_command_that_is_killed_or_interrupted(smollm2: Path, tmp_path: Path) -> None:
    """Nothing is left that the next command does not remove, and an interrupted one leaves nothing."""
    generate = [sys.executable, "-m", "genwright", "generate", "Once", "--model", str(smollm2), "--ignore-eos"]
    generate += ["--offload", ALL_ON_DISK, "--offload-dir", str(tmp_path), "--max-new-tokens", "4000"]
    for number in (signal.SIGKILL, signal.SIGINT):
        with subprocess.Popen(generate, stdout=PIPE, stderr=PIPE, env=ENVIRONMENT) as command:
            assert command.stdout and command.stderr and command.stdout.read(1), "no text"
            (folder,) = tmp_path.iterdir()
            assert [path.name for path in folder.iterdir()] == ["lock"]
            command.send_signal(number)
            assert b"Traceback" not in command.stderr.read()
        assert command.returncode == {signal.SIGKILL: -9, signal.SIGINT: 130}[number]
    assert not list(tmp_path.iterdir())


def test_closing_in_the_middle_of_a_step_moves_nothing(
    deep_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(deep_model, device="cpu", max_context=128, offload=ALL_ON_DISK, offload_dir=str(tmp_path))
    executor = llm.engine.executor
    block = executor._block

    def failing(layer: int, *others: Any) -> torch.Tensor:
        if layer == 3:
            raise RuntimeError("in the middle")
        return block(layer, *others)

    monkeypatch.setattr(executor, "_block", failing)
    with pytest.raises(RuntimeError, match="in the middle"):
        executor.run([Chunk([5, 6, 7], 0, [[0]])])
    executor.tiers._folder._threads.shutdown()  # the interpreter does it before it closes models
    llm.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not FULL_SIZE, reason="writes and reads a model of 2.4 GB; alone on the machine")
def test_decoding_reads_at_the_rate_of_the_disk(tmp_path: Path) -> None:
    """The system limits the process to about half the memory that the weights would take."""
    limit = 1200 << 20
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks.disk", str(tmp_path), "--gib", "0.25", "--rounds", "5"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_DATA, (limit, limit)),
        capture_output=True,
        text=True,
    )
    assert not found.returncode, found.stderr
    on_disk, share = re.search(r"with ([\d.]+) GB on disk\n.*^decoding.* (\d+)%", found.stdout, re.S | re.M).groups()
    assert float(on_disk) * 1e9 > 1.8 * limit
    assert int(share) >= 70, found.stdout


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (ON_DISK, r"^Offloading needs [\d,]{9} bytes in .*, but 12,288 bytes are free; "),
        (ALL_ON_DISK, r"^Offloading needs [\d,]{9} bytes in .*, but 12,288 bytes are free; "),
        ("100,0,0,0,100,0", "must fit in each tier that has a share, but the disk has room for 0 tokens; "),
    ],
    ids=["weights", "all", "cache"],
)
def test_a_full_disk_is_refused_before_anything_is_loaded(
    deep_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, sentence: str
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=3, f_frsize=4096))
    loaded: list[int] = []
    with pytest.raises(UserError, match=sentence):
        LLM(
            deep_model,
            progress=lambda done, total: loaded.append(done),
            device="cpu",
            offload=policy,
            offload_dir=str(tmp_path),
        )
    assert not loaded and not list(tmp_path.iterdir())
