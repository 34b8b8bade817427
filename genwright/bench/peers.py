"""Other engines that are installed here, to compare with on the same model in the same run."""

import shutil
import time
from collections import deque
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from genwright.bench.experiments import Experiment, Point, Traffic
from genwright.bench.llama_cpp import PROGRAM, BatchedBench, GgufFile
from genwright.bench.measure import TEMPERATURE, TOP_K, Peer, Unfit, timed
from genwright.bench.rows import Sample
from genwright.bench.serving import Arrival, Served, served
from genwright.bench.work import Work, plain_cache_read, work_of
from genwright.text.catalogue import resolve
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.llm import LLM


class Transformers:
    """`generate` of transformers, with its dynamic cache; requests are served by its continuous batching."""

    name = "transformers"
    options: dict[str, Any] = {}  # noqa: RUF012 - of generate, and never changed

    def __init__(self, experiment: Experiment, llm: LLM):
        if experiment.config.quant:
            raise Unfit("transformers does not support this weight format.")
        import transformers

        started = time.perf_counter()
        self.device, dtype = llm.model.device, llm.model.dtype
        model: Any
        path = Path(resolve(experiment.model))
        if path.suffix == ".gguf":
            model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype)
        elif path.exists():
            model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        else:
            settings = dict(open_checkpoint(experiment.model).hf_config)
            config = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
            with torch.device(self.device):  # random weights, drawn where they will be
                model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
        self.model = model.to(self.device).eval()
        self.load = time.perf_counter() - started
        self.llm, self.dtype = llm, str(dtype).removeprefix("torch.")

    def work(self, point: Point) -> Work:
        """Weights and cache in the model's data type; our cache may be packed."""
        cache = plain_cache_read(self.llm.model.cfg, self.llm.model.dtype.itemsize, point.mean_length)
        return replace(work_of(self.llm, point), cache=point.batch * cache)

    @torch.inference_mode()
    def sample(self, prompts: list[list[int]], new: int, seed: int) -> Sample:
        times: list[float] = []
        torch.manual_seed(seed)
        started = time.perf_counter()
        ids = torch.tensor(prompts, device=self.device)
        self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=True,
            temperature=TEMPERATURE,
            top_k=TOP_K,
            pad_token_id=0,
            streamer=_Clock(times),
            **self.options,
        )
        ended = time.perf_counter()
        return timed(started, ended, [times[1:]] * len(prompts))  # the streamer gets the prompt first

    def serve(self, requests: list[Arrival]) -> Served:
        from transformers import GenerationConfig

        config = GenerationConfig(do_sample=True, temperature=TEMPERATURE, top_k=TOP_K, eos_token_id=-1, pad_token_id=0)
        times: list[list[float]] = [[] for _ in requests]
        waiting, running = deque(enumerate(requests)), 0
        with self.model.continuous_batching_context_manager(config, persistent_manager=True) as manager:
            started = time.perf_counter()
            while waiting or running:
                now = time.perf_counter() - started
                while waiting and waiting[0][1].at <= now:
                    index, request = waiting.popleft()
                    manager.add_request(request.prompt, str(index), max_new_tokens=request.new, streaming=True)
                    running += 1
                pause = waiting[0][1].at - now if waiting else 1.0
                result = manager.get_result(timeout=max(pause, 1e-4))
                if result is None and not manager.is_running():
                    raise RuntimeError("The thread of continuous batching ended.")
                if result is None:
                    continue
                if result.error is not None:
                    raise RuntimeError(result.error)
                times[int(result.request_id)].append(time.perf_counter())
                running -= result.is_finished()
        return served(requests, started, times)


class CompiledTransformers(Transformers):
    """`generate` of transformers, with a static cache and a compiled forward pass."""

    name = "transformers, compiled"

    def __init__(self, experiment: Experiment, llm: LLM):
        if any(isinstance(point, Traffic) for point in experiment.points):
            raise Unfit("transformers' continuous batching is measured without compilation.")
        super().__init__(experiment, llm)
        from transformers import CompileConfig

        compilation: Any = CompileConfig()
        compilation._compile_all_devices = True  # on a CPU too
        self.options = {"cache_implementation": "static", "compile_config": compilation}


class LlamaCpp:
    """llama.cpp by way of llama-cpp-python."""

    name = "llama-cpp-python"

    def __init__(self, experiment: Experiment, llm: LLM):
        self.file = GgufFile(experiment, llm)
        import llama_cpp

        started = time.perf_counter()
        self.model = llama_cpp.Llama(
            model_path=str(self.file.path),
            n_ctx=experiment.context,
            n_threads=torch.get_num_threads(),
            n_threads_batch=torch.get_num_threads(),
            n_gpu_layers=0 if llm.model.device.type == "cpu" else -1,
            verbose=False,
        )
        self.load = time.perf_counter() - started
        self.llm, self.context, self.dtype = llm, experiment.context, self.file.dtype

    def work(self, point: Point) -> Work:
        return self.file.work(self.llm, point)

    def sample(self, prompts: list[list[int]], new: int, seed: int) -> Sample:
        if len(prompts) > 1:
            raise Unfit("llama-cpp-python decodes one sequence at a time.")
        times: list[float] = []
        self.model.reset()
        self.model.set_seed(seed)
        started = time.perf_counter()
        for _ in self.model.generate(prompts[0], temp=TEMPERATURE, top_k=TOP_K, top_p=1.0, min_p=0.0):
            times.append(time.perf_counter())
            if len(times) == new:
                break
        return timed(started, time.perf_counter(), [times])

    def serve(self, requests: list[Arrival]) -> Served:
        """In parallel slots, which take the first requests that come; later ones wait."""
        from genwright.bench.llama_cpp_slots import Slots

        slots = Slots(self.model.model, self.context, torch.get_num_threads(), TOP_K, TEMPERATURE)
        try:
            return slots.serve(requests)
        finally:
            slots.close()


class _Clock:
    """Records when tokens come."""

    def __init__(self, times: list[float]):
        self.times = times

    def put(self, tokens: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def installed_peers() -> list[Peer]:
    """The peers that can be imported, or that are programs on the PATH."""
    peers: dict[Peer, object] = {
        Transformers: find_spec("transformers"),
        CompiledTransformers: find_spec("transformers"),
        BatchedBench: shutil.which(PROGRAM),
        LlamaCpp: find_spec("llama_cpp"),
    }
    return [peer for peer, found in peers.items() if found is not None]
