"""Measure one experiment: load, first call, then samples of every point, timed from the caller's side."""

import gc
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch

from genwright.bench.experiments import Experiment, Point, Traffic
from genwright.bench.roofline import Roofline, measure_roofline
from genwright.bench.rows import GIGA, Row, Sample, Tell, blank, fill
from genwright.bench.serving import Arrival, Served, arrivals, drive, fill_serving, served, whole_work
from genwright.bench.work import Work, weight_form, work_of
from genwright.device import peak_memory, pick_device
from genwright.errors import UserError
from genwright.rng import key
from genwright.text.engine.request import Piece, SamplingParams
from genwright.text.llm import LLM

TEMPERATURE, TOP_K = 0.8, 200
BROKEN_OFF = "An answer was broken off: memory ran out, or the model's output was NaN."
Speeds = dict[tuple["Contender", Traffic], float]  # requests per second, of contenders and traffic at once
FAILURES = (UserError, RuntimeError, MemoryError, ValueError, ImportError, OSError)


class Contender(Protocol):
    """An engine that generates: this one, or a peer."""

    name: str
    load: float  # seconds
    dtype: str  # of its weights

    def work(self, point: Point) -> Work:
        """The bytes it reads and the operations it computes."""

    def sample(self, prompts: list[list[int]], new: int, seed: int) -> Sample:
        """A call that generates `new` tokens for each prompt."""

    def serve(self, requests: list[Arrival]) -> Served:
        """A run of requests, each from the time when it arrives."""


class Peer(Protocol):
    """Makes a contender to compare with, from an experiment and this engine's model."""

    name: str

    def __call__(self, experiment: Experiment, llm: LLM) -> Contender: ...


class Unfit(UserError):
    """A peer does not support an experiment; this is no failure."""


class Ours:
    """This engine."""

    name = "genwright"

    def __init__(self, experiment: Experiment, tell: Tell):
        config = replace(experiment.config, max_context=experiment.config.max_context or experiment.context)
        started = time.perf_counter()
        self.llm = LLM(experiment.model, config, lambda done, total: tell("loading", done, total))
        synchronize(self.llm.model.device)
        self.load = time.perf_counter() - started
        self.dtype = config.quant or weight_form(self.llm.model)

    def work(self, point: Point) -> Work:
        return work_of(self.llm, point)

    def sample(self, prompts: list[list[int]], new: int, seed: int) -> Sample:
        """For a batch, a first call only prefills, so that all sequences decode together in the second call."""
        if len(prompts) == 1:
            return self._call(prompts, new, seed)
        read = self._call(prompts, 1, seed).seconds
        sample = self._call(prompts, new, seed)  # the prompts are in the prefix cache now
        return replace(sample, first=read, seconds=read + sample.seconds)

    def _call(self, prompts: list[list[int]], new: int, seed: int) -> Sample:
        times: list[list[float]] = [[] for _ in prompts]

        def note(piece: Piece) -> None:
            times[piece.index] += [time.perf_counter()] * len(piece.ids)

        started = time.perf_counter()
        results = self.llm.generate(prompts, _params(new, seed), note)
        ended = time.perf_counter()
        if any(result.finish_reason != "length" for result in results):
            raise UserError(BROKEN_OFF)
        return timed(started, ended, times)

    def serve(self, requests: list[Arrival]) -> Served:
        due = [
            (each.at, self.llm.requests(each.prompt, _params(each.new, index), index)[0])
            for index, each in enumerate(requests)
        ]
        started, times = drive(self.llm, due)
        if any(request.finish_reason != "length" for _, request in due):
            raise UserError(BROKEN_OFF)
        return served(requests, started, times)


def _params(new: int, seed: int) -> SamplingParams:
    return SamplingParams(temperature=TEMPERATURE, top_k=TOP_K, max_new_tokens=new, seed=seed, ignore_eos=True)


def timed(started: float, ended: float, times: Sequence[Sequence[float]]) -> Sample:
    """A sample, from the times at which the tokens of each sequence came."""
    begin, end = max(each[0] for each in times), min(each[-1] for each in times)
    together = sum(begin < moment <= end for each in times for moment in each)
    if not together and max(map(len, times)) > 1:
        raise UserError(
            f"The {len(times)} sequences were not decoded together, because the engine runs fewer at a time."
        )
    decode = together / (end - begin) if together else 0.0
    return Sample(ended - started, sum(map(len, times)), begin - started, decode)


def measure(
    experiment: Experiment,
    tell: Tell = lambda what, done, total: None,
    peers: Sequence[Peer] = (),
    trace: Callable[[Callable[[], object]], None] | None = None,
) -> list[Row]:
    """The rows of an experiment; contenders take turns. `trace` gets one more call of this engine to profile."""
    device = pick_device(experiment.device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    ours = Ours(experiment, tell)
    llm = ours.llm
    empty = replace(blank(experiment), device=device.type, arch=arch(device))
    starts: dict[Contender, Row] = {ours: _start(ours, experiment, llm, empty, tell)}
    starts[ours] = replace(starts[ours], memory=peak_memory(device) / GIGA)
    rows: list[Row] = []
    contender: Contender = ours
    for peer in peers:
        try:
            tell(f"loading {peer.name}", 0, 0)
            contender = peer(experiment, llm)
            starts[contender] = _start(contender, experiment, llm, empty, tell)
        except FAILURES as error:
            rows.append(_failed(replace(empty, engine=peer.name), error))
    gc.freeze()  # as in the server: looking for garbage in all that was imported would stop a step for 0.1 s
    vocab = llm.model.cfg.vocab_size
    speeds: Speeds = {}
    found = []
    for point in experiment.points:
        for contender, outcome in _take_turns(starts, experiment, point, vocab, speeds, tell):
            found.append((_place(starts[contender], point), _work(contender, point), outcome))
            if isinstance(point, Traffic) and point.at_once and not isinstance(outcome, Exception):
                speeds[contender, point] = point.requests / statistics.median(run.seconds for run in outcome)
    if trace is not None:
        trace(partial(_sample, ours, experiment.points[-1], experiment.samples, vocab, speeds))
    dtype = llm.model.dtype
    del ours, llm, starts, contender, speeds
    gc.unfreeze()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    tell("measuring the device", 0, 0)
    limits = measure_roofline(device, dtype)
    return [
        _failed(row, outcome) if isinstance(outcome, Exception) else _fill(row, outcome, work, limits)
        for row, work, outcome in found
    ] + rows


def _failed(row: Row, error: Exception) -> Row:
    return replace(row, error=sentence(error), skipped=isinstance(error, Unfit))


def _start(contender: Contender, experiment: Experiment, llm: LLM, empty: Row, tell: Tell) -> Row:
    """The first call of a contender, with what it compiles."""
    tell(f"first call of {contender.name}", 0, 0)
    point, vocab = experiment.points[0], llm.model.cfg.vocab_size
    row = replace(empty, engine=contender.name, dtype=contender.dtype, load=contender.load)
    if isinstance(point, Traffic):
        run = contender.serve(arrivals(replace(point, requests=1), -1, None, vocab))
        return replace(row, first_token=run.first[0], first_call=run.seconds)
    first = contender.sample(prompts_for(point, -1, vocab), point.new, 0)
    return replace(row, first_token=first.first, first_call=first.seconds)


def _take_turns(
    contenders: Iterable[Contender],
    experiment: Experiment,
    point: Point | Traffic,
    vocab: int,
    speeds: Speeds,
    tell: Tell,
) -> list[tuple[Contender, list[Any] | Exception]]:
    """The samples of each contender, which are Served or Sample, or the error that prevented them."""
    outcomes: dict[Contender, list[Any] | Exception] = {contender: [] for contender in contenders}
    # The first call warmed up the first point, but of traffic only one request; arrivals come after all at once.
    warm = point.at_once if isinstance(point, Traffic) else point is not experiment.points[0]
    for turn in range(-warm, experiment.samples):
        for contender in outcomes:
            samples = outcomes[contender]
            if isinstance(samples, Exception):
                continue
            tell(f"{contender.name}, {point}", turn + 1, experiment.samples)
            try:
                sample = _sample(contender, point, turn, vocab, speeds)
            except FAILURES as error:
                outcomes[contender] = error.with_traceback(None)  # its frames would keep large tensors alive
                continue
            if turn >= 0:
                samples.append(sample)
    return list(outcomes.items())


def _sample(contender: Contender, point: Point | Traffic, turn: int, vocab: int, speeds: Speeds) -> Sample | Served:
    if isinstance(point, Point):
        return contender.sample(prompts_for(point, turn, vocab), point.new, turn + 1)
    rate = point.rate
    if point.share is not None:
        speed = speeds.get((contender, replace(point, share=None)))
        if speed is None:
            raise UserError("There is no throughput of all requests at once, of which the rate would be a share.")
        rate = point.share * speed
    return replace(contender.serve(arrivals(point, turn, rate, vocab)), rate=rate)


def _place(row: Row, point: Point | Traffic) -> Row:
    if isinstance(point, Point):
        return replace(row, batch=point.batch, prompt=point.prompt, new=point.new)
    (prompt, longest_prompt), (new, longest_new) = point.prompt, point.new
    row = replace(row, batch=point.requests, prompt=prompt, new=new)
    return replace(row, longest_prompt=longest_prompt, longest_new=longest_new)


def _work(contender: Contender, point: Point | Traffic) -> Work:
    return whole_work(point, contender.work) if isinstance(point, Traffic) else contender.work(point)


def _fill(row: Row, samples: list[Any], work: Work, limits: Roofline) -> Row:
    return (fill_serving if row.serving else fill)(row, samples, work, limits)


def prompts_for(point: Point, turn: int, vocab: int) -> list[list[int]]:
    """Random tokens, different at every turn and point, so that the prefix cache has none of the prompts."""
    return [
        [key(point.batch, point.prompt, turn, sequence, position) % vocab for position in range(point.prompt)]
        for sequence in range(point.batch)
    ]


def sentence(error: BaseException) -> str:
    """The error in one sentence."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        return "Memory ran out."
    if isinstance(error, UserError):
        return str(error)
    why = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {why}" if why else f"{type(error).__name__}."


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def arch(device: torch.device) -> str:
    """The GPU's name, or the processor's architecture."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
