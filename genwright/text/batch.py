"""Long jobs: a file of prompts in, a file of results out, resumable after any interrupt."""

import fcntl
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from genwright.errors import UserError
from genwright.text.config_file import read_text, short
from genwright.text.engine.request import Request, Result, SamplingParams
from genwright.text.llm import LLM, gather

_PARAMETERS = {field.name for field in fields(SamplingParams)}
_KEYS = _PARAMETERS | {"id", "prompt", "messages"}
_ROW_START = b'{"line": '


@dataclass(frozen=True)
class Job:
    """One line of a prompt file."""

    line: int
    given: dict[str, Any]  # the user's own id of it, if there is one
    prompt: Any  # text or token ids, which LLM checks
    params: SamplingParams
    digest: str  # of the line, and of the model and settings: a results file is not continued with others


def read_lines(path: Path) -> list[tuple[int, str]]:
    """The lines of a file that are not blank, with their numbers; nothing but a line feed ends a line."""
    lines = enumerate(read_text(path, newline="\n").split("\n"), 1)
    return [(number, line.removesuffix("\r")) for number, line in lines if line.strip()]


def read_jobs(
    lines: list[tuple[int, str]], params: SamplingParams, llm: LLM, chat: bool
) -> Iterator[Job | tuple[int, str]]:
    """The jobs of lines that are prompts or JSON objects; of a bad line its number and what is wrong."""
    as_json = bool(lines) and lines[0][1].lstrip().startswith("{")
    settings = _digest(repr((params, chat, llm.fingerprint)))
    for number, line in lines:
        try:
            value: dict[str, Any] = _parse(line) if as_json else {"prompt": line}
            prompt = value.get("prompt")
            if chat and isinstance(prompt, str):
                value["messages"] = [{"role": "user", "content": prompt}]
            if "messages" in value:
                prompt = llm.encode_chat(value["messages"])
            own = replace(params, **{key: value[key] for key in _PARAMETERS & set(value)})
            given = {"id": value["id"]} if "id" in value else {}
            yield Job(number, given, prompt, own, f"{_digest(line)}-{settings}")
        except UserError as error:
            yield number, str(error)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parse(line: str) -> dict[str, Any]:
    """A line's object, with a prompt or messages and no key that is not known."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"it is not valid JSON: {error}.") from None
    if not isinstance(value, dict) or ("prompt" in value) == ("messages" in value):
        raise UserError("it must be an object with 'prompt' or 'messages'.")
    if unknown := sorted(set(value) - _KEYS):
        raise UserError(
            f"it has the key {short(unknown[0])}; known are id, prompt, messages and the sampling parameters."
        )
    if isinstance(value.get("logit_bias"), dict):  # whose keys JSON can only write as strings
        value["logit_bias"] = {_whole(key): bias for key, bias in value["logit_bias"].items()}
    return value


def _whole(key: str) -> int | str:
    try:
        return int(key)
    except ValueError:
        return key  # which SamplingParams refuses


class Results:
    """A JSONL file that grows by whole lines; opening it repairs a torn last line and tells what is done."""

    def __init__(self, path: Path):
        self.path = path
        try:
            self.file = path.open("ab", buffering=0)
            if not path.is_file():
                raise UserError(f"{path} is not a regular file, so results cannot be kept in it.")
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{path} is being written by another process.") from None
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}.") from None
        self.done = self._read()

    def _read(self) -> dict[int, str]:
        whole, done = 0, {}
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n") and line.startswith(_ROW_START[: len(line)]):
                    break  # torn by a crash: it is cut off below and its job runs again
                try:
                    row = json.loads(line)
                    done[int(row["line"])] = str(row["digest"])
                except (ValueError, KeyError, TypeError, RecursionError):
                    raise UserError(
                        f"{self.path} has a line {number} that is no result of ours; name another file."
                    ) from None
                whole += len(line)
        self.file.truncate(whole)
        return done

    def add(self, row: dict[str, Any]) -> None:
        # Half a character (a lone surrogate), which an id may have, becomes an escape of JSON.
        data = json.dumps(row, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
        try:
            while data:
                data = data[self.file.write(data) :]
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be written: {error.strerror}; the results before are kept, and the same command "
                "goes on from there."
            ) from None

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
                    _check_digest(results, job)
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
                    tell(f"Line {line} was left out: {error}")
                    bad += 1
                    tick()
            if not llm.engine.busy():
                return bad
            llm.engine.step()
            ended = [line for line, (_, samples) in running.items() if all(sample.finish_reason for sample in samples)]
            for line in ended:
                job, samples = running.pop(line)
                results.add({"line": line, **job.given, "digest": job.digest, **as_json(gather(samples))})
                tick()
    finally:
        llm.engine.cancel(request for _, samples in running.values() for request in samples)


def _check_digest(results: Results, job: Job) -> None:
    """Refuse to continue results of other prompts, another model or other settings."""
    (line, _, settings), (known, _, used) = job.digest.partition("-"), results.done[job.line].partition("-")
    if line != known:
        raise UserError(f"{results.path} was made from other prompts: line {job.line} differs.")
    if settings != used:
        raise UserError(f"{results.path} was made with another model or other flags; use those, or name another file.")


def as_json(result: Result) -> dict[str, Any]:
    """A result as JSON; what was not asked for is left out."""
    row = asdict(result)
    row["timing"]["tokens_per_second"] = len(result.ids) / result.timing.total if result.timing.total else 0.0
    if result.acceptance is not None:
        row["acceptance"] |= {"rates": result.acceptance.rates, "mean": result.acceptance.mean}
    row["samples"] = [as_json(sample) for sample in result.samples]
    return {key: value for key, value in row.items() if value is not None and (key != "samples" or value)}
