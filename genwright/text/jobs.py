"""Long jobs: a file of prompts in, a file of results out, resumable after any interrupt."""

import fcntl
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import IO, Any

from genwright.errors import UserError
from genwright.text.engine.llm import LLM, gather
from genwright.text.engine.request import Request, Result, SamplingParams
from genwright.text.fields import read_text

_PARAMETERS = {field.name for field in fields(SamplingParams)}
_KEYS = _PARAMETERS | {"prompt", "messages"}


@dataclass(frozen=True)
class Job:
    """One line of a prompt file."""

    line: int
    prompt: str | list[int]
    params: SamplingParams
    digest: str  # of the line, so that a results file is not continued with other prompts


def read_jobs(path: Path, params: SamplingParams, llm: LLM, chat: bool) -> Iterator[Job | tuple[int, str]]:
    """The jobs of a file, a prompt or a JSON object per line; of a bad line its number and what is wrong."""
    text = read_text(path)
    as_json = text.lstrip().startswith("{")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            prompt, own = _parse(line, params) if as_json else (line, params)
            if chat and isinstance(prompt, str):
                prompt = [{"role": "user", "content": prompt}]
            ids = (
                llm.encode_chat(prompt)
                if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict)
                else prompt
            )
            yield Job(number, ids, own, hashlib.sha256(line.encode()).hexdigest()[:16])
        except UserError as error:
            yield number, str(error)


def _parse(line: str, params: SamplingParams) -> tuple[Any, SamplingParams]:
    """A line's prompt (text, ids or messages), and the common parameters with its own over them."""
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UserError(f"it is not valid JSON: {error}.") from None
    if not isinstance(value, dict) or ("prompt" in value) == ("messages" in value):
        raise UserError("it should be an object with 'prompt' or 'messages'.")
    unknown = sorted(set(value) - _KEYS)
    if unknown:
        raise UserError(f"it has the key {unknown[0]!r}; known are prompt, messages and the sampling parameters.")
    prompt = value.get("prompt", value.get("messages"))
    items = {str} if "messages" not in value and isinstance(prompt, str) else {dict if "messages" in value else int}
    if not isinstance(prompt, str) and not (isinstance(prompt, list) and {type(item) for item in prompt} <= items):
        raise UserError("'prompt' should be text or token ids, and 'messages' a list of objects.")
    own = {key: value[key] for key in _PARAMETERS & set(value)}
    if isinstance(own.get("logit_bias"), dict):
        own["logit_bias"] = {int(k) if k.lstrip("-").isdigit() else k: v for k, v in own["logit_bias"].items()}
    return prompt, replace(params, **own)


class Results:
    """A JSONL file that grows by whole lines; opening it repairs a torn last line and tells what is done."""

    def __init__(self, path: Path):
        self.path = path
        try:
            self.file: IO[bytes] = path.open("a+b")
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}.") from None
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.file.close()
            raise UserError(f"{path} is being written by another process.") from None
        self.done = self._read()

    def _read(self) -> dict[int, str]:
        self.file.seek(0)
        whole, done = 0, {}
        for number, line in enumerate(self.file, 1):
            if not line.endswith(b"\n"):
                break  # torn by a crash: it is cut off below and its job runs again
            try:
                row = json.loads(line)
                done[int(row["line"])] = str(row["digest"])
            except (ValueError, KeyError, TypeError):
                raise UserError(
                    f"{self.path} has a line {number} that is no result of ours; name another file."
                ) from None
            whole += len(line)
        self.file.truncate(whole)
        return done

    def add(self, row: dict[str, Any]) -> None:
        self.file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        self.file.flush()

    def close(self) -> None:
        self.file.close()


def run_jobs(
    llm: LLM,
    jobs: Iterable[Job | tuple[int, str]],
    results: Results,
    tell: Callable[[str], None],
    tick: Callable[[], None],
) -> int:
    """Run what is not done yet, writing each result as it comes; returns how many lines were bad."""
    pending, bad, scheduler = iter(jobs), 0, llm.engine.scheduler
    running: dict[int, tuple[Job, list[Request]]] = {}
    try:
        while True:
            while len(scheduler.waiting) < scheduler.max_batch and (job := next(pending, None)) is not None:
                if isinstance(job, Job) and job.line in results.done:
                    if results.done[job.line] != job.digest:
                        raise UserError(f"{results.path} was made from other prompts: line {job.line} differs.")
                    tick()
                    continue
                try:
                    if not isinstance(job, Job):
                        raise UserError(job[1])
                    samples = llm.requests(job.prompt, job.params, job.line)
                    for sample in samples:
                        llm.engine.submit(sample)
                    running[job.line] = (job, samples)
                except UserError as error:
                    line = job.line if isinstance(job, Job) else job[0]
                    tell(f"line {line} was left out: {error}")
                    bad += 1
                    tick()
            if not llm.engine.busy():
                return bad
            llm.engine.step()
            ended = [line for line, (_, samples) in running.items() if all(sample.finish_reason for sample in samples)]
            for line in ended:
                job, samples = running.pop(line)
                results.add({"line": line, "digest": job.digest, **as_json(gather(samples))})
                tick()
    finally:
        llm.engine.cancel(request for _, samples in running.values() for request in samples)


def as_json(result: Result) -> dict[str, Any]:
    """A result as JSON; what was not asked for is left out."""
    row = asdict(result)
    row["timing"]["tokens_per_second"] = len(result.ids) / result.timing.total if result.timing.total else 0.0
    if result.acceptance is not None:
        row["acceptance"] |= {"rates": result.acceptance.rates, "mean": result.acceptance.mean}
    row["samples"] = [as_json(sample) for sample in result.samples]
    return {key: value for key, value in row.items() if value is not None and (key != "samples" or value)}
