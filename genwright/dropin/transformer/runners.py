"""Runners: complete a prompt with the engine or, on one of several ranks, with gpt-fast's modules."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import torch

from genwright.dropin.transformer.checkpoint import load_modules, open_llm
from genwright.dropin.transformer.decoding import generate
from genwright.dropin.transformer.modules import Transformer
from genwright.text.engine.request import Acceptance, Piece, SamplingParams
from genwright.text.llm import LLM


@dataclass(frozen=True)
class Task:
    """What is generated: `batch_size` answers of `max_new_tokens` each, to one prompt."""

    prompt: list[int]
    max_new_tokens: int
    batch_size: int = 1
    temperature: float = 0.8
    top_k: int = 200
    seed: int = 1234
    stop: bool = False  # at the end-of-sequence token
    show: Callable[[str], object] | None = None  # gets the text of one answer, piece by piece


@dataclass(frozen=True)
class Completion:
    """Prompt and answer of each sequence, and how often 0, 1, 2 ... tokens of a draft were accepted at once."""

    rows: list[list[int]]
    accept_counts: list[int] = field(default_factory=list)


class Runner(Protocol):
    def run(self, task: Task) -> Completion: ...


class EngineRunner(Runner):
    def __init__(self, llm: LLM):
        self.llm = llm

    def run(self, task: Task) -> Completion:
        params = SamplingParams(
            temperature=task.temperature,
            top_k=task.top_k,
            max_new_tokens=task.max_new_tokens,
            seed=task.seed,
            n=task.batch_size,
            ignore_eos=not task.stop,
        )
        show = task.show

        def callback(piece: Piece) -> None:
            assert show is not None
            show(piece.text)

        first = self.llm.generate([task.prompt], params, callback if show else None)[0]
        results, acceptance = [first, *first.samples], Acceptance()
        for result in results:
            acceptance.add(result.acceptance or Acceptance())
        return Completion([task.prompt + result.ids for result in results], accept_counts(acceptance))


def accept_counts(found: Acceptance) -> list[int]:
    """How many proposals had exactly 0, 1, 2 ... tokens accepted."""
    if not found.drafted:
        return []
    at_least = [found.drafted[0], *found.accepted, 0]
    return [more - fewer for more, fewer in pairwise(at_least)]


class ModuleRunner(Runner):
    """Runs the modules in this process; every rank draws the same tokens from the same seed."""

    def __init__(self, model: Transformer, draft: Transformer | None, speculate_k: int, device: str):
        self.model, self.draft, self.speculate_k, self.device = model, draft, speculate_k, device

    def run(self, task: Task) -> Completion:
        torch.manual_seed(task.seed)
        rows, counted = generate(
            self.model,
            torch.tensor(task.prompt, device=self.device),
            task.max_new_tokens,
            task.batch_size,
            draft_model=self.draft,
            speculate_k=self.speculate_k,
            temperature=task.temperature,
            top_k=task.top_k or None,
        )
        return Completion(rows.tolist(), counted["accept_counts"])


@contextmanager
def engine_runner(
    path: Path, kind: type[Transformer], draft: Path | None, speculate_k: int, device: str, **settings: Any
) -> Iterator[Runner]:
    with open_llm(path, kind.args, draft, speculate_k=speculate_k, device=device, **settings) as llm:
        yield EngineRunner(llm)


@contextmanager
def rank_runner(
    path: Path,
    kind: type[Transformer],
    draft: Path | None,
    speculate_k: int,
    device: str,
    split: Callable[[Any], None],
    compile: bool,
) -> Iterator[Runner]:
    """`split` leaves a model the part of one rank."""
    models = []
    for each in (path, draft):
        if each is not None:
            model = load_modules(each, kind, "cpu", torch.bfloat16)
            print("Applying tensor parallel to model ...")
            split(model)
            models.append(model.to(device))
            if compile:
                model.compile(dynamic=False)
    yield ModuleRunner(models[0], models[1] if draft else None, speculate_k, device)
