"""Complete a prompt with the engine, as gpt-fast's command and PyTorch's benchmark do."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

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


def complete(llm: LLM, task: Task) -> Completion:
    """Run a task."""
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

    first = llm.generate([task.prompt], params, callback if show else None)[0]
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
