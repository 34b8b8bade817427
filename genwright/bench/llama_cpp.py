"""llama.cpp's own benchmark as a peer, on the same GGUF file or on a random one of the same shape.

llama-batched-bench must be on the PATH. It reads random tokens, in parallel sequences, and draws none from the logits.
"""

import json
import re
import subprocess
import time
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from genwright.bench.experiments import Experiment, Point, Traffic
from genwright.bench.measure import Unfit
from genwright.bench.random_gguf import BLOCKS, FLOATS, write_gguf
from genwright.bench.rows import Sample
from genwright.bench.serving import Arrival, Served
from genwright.bench.work import Work, plain_cache_read, work_of
from genwright.quant.formats import parse_format
from genwright.text.catalogue import resolve
from genwright.text.checkpoints.gguf import GGUF
from genwright.text.llm import LLM

PROGRAM = "llama-batched-bench"
NO_ARRIVALS = f"{PROGRAM} has no requests that arrive over time."
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class BatchedBench:
    """A new process for every sample, which loads the file and warms up before it measures."""

    name = "llama.cpp"

    def __init__(self, experiment: Experiment, llm: LLM):
        if any(isinstance(point, Traffic) for point in experiment.points):
            raise Unfit(NO_ARRIVALS)
        self.file = GgufFile(experiment, llm)
        self.llm, self.dtype = llm, self.file.dtype
        self.name = f"llama.cpp {build()}".strip()
        started = time.perf_counter()
        measured = self._run(1, 1, 1)["t"]
        self.load = time.perf_counter() - started - measured

    def work(self, point: Point) -> Work:
        return self.file.work(self.llm, point)

    def sample(self, prompts: list[list[int]], new: int, seed: int) -> Sample:
        found = self._run(len(prompts), len(prompts[0]), new)
        return Sample(found["t"], len(prompts) * new, found["t_pp"], found["speed_tg"])

    def _run(self, batch: int, prompt: int, new: int) -> dict[str, float]:
        """The program's figures: t, t_pp and t_tg are seconds, of the whole, of the prompts and of the new tokens."""
        room = -(-(prompt + new) // 256) * 256 * batch  # a sequence has a multiple of 256
        flags = {"-m": self.file.path, "-t": torch.get_num_threads(), "-c": room, "--output-format": "jsonl"}
        flags |= {"-npp": prompt, "-ntg": new, "-npl": batch, "-ngl": 0 if self.llm.model.device.type == "cpu" else 99}
        command = [PROGRAM, *(str(word) for pair in flags.items() for word in pair)]
        done = subprocess.run(command, capture_output=True, text=True)
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if not found:
            reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise RuntimeError(f"{PROGRAM} measured nothing: {reason}")
        return dict(found[0])

    def serve(self, requests: list[Arrival]) -> Served:
        raise Unfit(NO_ARRIVALS)


class GgufFile:
    """The GGUF file of an experiment's model, or a random one like it, which is deleted with this object."""

    def __init__(self, experiment: Experiment, llm: LLM):
        self.path = Path(resolve(experiment.model))
        if self.path.suffix != ".gguf":
            cfg = llm.model.cfg
            if self.path.exists() or cfg.architecture != "llama" or cfg.moe or find_spec("gguf") is None:
                raise Unfit("llama.cpp needs a GGUF file, and this model is not one.")
            self.path = self._like(llm, experiment.config.quant)
        self.dtype, self.step_bytes = stored_weights(self.path)

    def _like(self, llm: LLM, quant: str | None) -> Path:
        kind = str(llm.model.dtype).removeprefix("torch.")
        if quant is not None:
            form = parse_format(quant)
            kind = form.kind + (":asym" if form.asymmetric else "")
        if kind not in BLOCKS and kind not in FLOATS:
            raise Unfit(f"llama.cpp has no weight format like {quant}.")
        self.folder = TemporaryDirectory()
        path = Path(self.folder.name) / "random.gguf"
        write_gguf(llm.model.cfg, kind, path)
        return path

    def work(self, llm: LLM, point: Point) -> Work:
        """The file's weights, and a cache in float16."""
        cache = plain_cache_read(llm.model.cfg, 2, point.mean_length)
        return replace(work_of(llm, point), weights=self.step_bytes, cache=point.batch * cache)


def stored_weights(path: Path) -> tuple[str, int]:
    """The most frequent type of a GGUF file's weights, and the bytes of weights that a decoding step reads."""
    file = GGUF(path)
    # If there is no head, the embedding is the head.
    names = [name for name in file.names() if name != EMBEDDING or HEAD not in file.names()]
    types: Counter[str] = Counter()
    for name in names:
        kind, size = file.stored(name)
        types[kind] += size
    return types.most_common(1)[0][0], types.total()


def build() -> str:
    """The number of llama.cpp's build, such as b4567; empty if it does not tell."""
    done = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True)
    found = re.search(r"(?:build|version:) (\d+)[ ,]", done.stdout + done.stderr)
    return f"b{found[1]}" if found else ""
