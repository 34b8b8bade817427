"""The model class for lm-evaluation-harness; imported only if lm_eval is installed."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.tasks import TaskManager

from genwright.bench.evaluate import Progress, likelihoods, logprobs, spans
from genwright.errors import UserError
from genwright.text.engine.request import SamplingParams
from genwright.text.llm import LLM

NEW_TOKENS = 256  # of an answer, if the task does not set it


class HarnessModel(TemplateLM):
    """Answers the three kinds of requests of the harness; each list of requests is one batch."""

    def __init__(self, llm: LLM, progress: Progress = lambda done, total: None):
        super().__init__()
        if llm.tokenizer is None:
            raise UserError("Tasks need a tokenizer, but this checkpoint has none.")
        self.llm, self.words, self.progress = llm, llm.tokenizer, progress
        if not llm.eos_ids and self.words.bos_id is None:
            raise UserError("Tasks need a BOS or EOS token, but this model's tokenizer has neither.")

    @property
    def eot_token_id(self) -> int:
        return min(self.llm.eos_ids)

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without a context."""
        return self.eot_token_id if self.words.bos_id is None else self.words.bos_id

    @property
    def tokenizer_name(self) -> str:
        return "genwright"

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: object) -> list[int]:
        return self.words.encode(string, special=add_special_tokens is not False)

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: object
    ) -> list[tuple[float, bool]]:
        return likelihoods(self.llm, [(context, continuation) for _, context, continuation in requests], self.progress)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of whole texts, in windows that overlap by one token; the last window is full."""
        window = self.llm.max_context - 1
        texts = [[self.prefix_token_id, *self.words.encode(request.args[0])] for request in requests]
        places = [(index, place) for index, ids in enumerate(texts) for place in spans(len(ids), window, window - 1)]
        scores = logprobs(self.llm, [texts[i][place.start : place.end] for i, place in places], progress=self.progress)
        totals: list[list[float]] = [[] for _ in texts]
        for (index, place), row in zip(places, scores, strict=True):
            totals[index] += [entry.logprob for entry in row[place.scored - place.start - 1 :]]
        return [math.fsum(total) for total in totals]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        prompts, params = [], []
        for context, settings in (request.args for request in requests):
            wanted = normalize_gen_kwargs(settings, default_max_gen_toks=NEW_TOKENS)
            new = min(int(wanted["max_gen_toks"]), self.llm.max_context - 2)
            prompts.append(self.words.encode(context)[-(self.llm.max_context - 1 - new) :])
            params.append(
                SamplingParams(
                    temperature=float(wanted["temperature"]),
                    top_k=int(wanted.get("top_k", 0)),
                    top_p=float(wanted.get("top_p", 1.0)),
                    max_new_tokens=new,
                    stop=tuple(text for text in wanted["until"] if text),
                )
            )
        return [result.text or "" for result in self.llm.generate(prompts, params)]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self.words.render(chat_history)

    def chat_template(self, chat_template: bool | str = False) -> str:
        return self.words.chat_template or ""


def run_tasks(
    llm: LLM, tasks: Sequence[str], folder: Path | None, limit: int | None, progress: Progress
) -> dict[str, dict[str, Any]]:
    """Run tasks and return their figures by name; `folder` may hold more tasks."""
    results: dict[str, dict[str, Any]] = evaluate_model(HarnessModel(llm, progress), tasks, folder, limit)["results"]
    return results


def evaluate_model(
    model: TemplateLM, tasks: Sequence[str], folder: Path | None = None, limit: int | None = None
) -> dict[str, Any]:
    """What the harness finds for a model class of its own: `results` has the figures of each task."""
    manager = TaskManager(include_path=None if folder is None else str(folder))
    unknown = [task for task in tasks if task not in manager.all_tasks]
    if unknown:
        raise UserError(f"lm-evaluation-harness has no task {unknown[0]!r}; `lm_eval ls tasks` lists them.")
    try:
        found: dict[str, Any] = lm_eval.simple_evaluate(
            model, tasks=list(tasks), limit=limit, task_manager=manager, bootstrap_iters=1000
        )
    except (OSError, ValueError, RuntimeError) as error:  # mostly a data set that cannot be downloaded
        why = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(f"lm-evaluation-harness could not run {', '.join(tasks)}: {why}.") from None
    return found
