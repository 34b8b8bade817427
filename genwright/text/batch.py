"""Long jobs: a file of prompts in, a file of results out, resumable after any interrupt."""

import fcntl
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from genwright.arguments import short
from genwright.errors import UserError
from genwright.text.config_file import read_text
from genwright.text.engine.loop import Delivery, only_ends, receive
from genwright.text.engine.request import STOPPED_EARLY, Request, Result, SamplingParams
from genwright.text.llm import LLM, gather

_LISTS = ("samples", "tool_calls")  # left out of a result if they are empty
_PARAMETERS = {field.name for field in fields(SamplingParams) if field.metadata}
_KEYS = _PARAMETERS | {"id", "prompt", "messages"}
_ROW_START = b'{"line": '


def read_lines(path: Path) -> list[tuple[int, str]]:
    """Read the lines that are not blank, with their numbers; only a line feed ends a line."""
    lines = enumerate(read_text(path, newline="\n").split("\n"), 1)
    return [(number, line.removesuffix("\r")) for number, line in lines if line.strip()]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parse(line: str) -> dict[str, Any]:
    """Parse a JSON line: an object with a prompt or messages and no unknown key."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"The line is not valid JSON: {error}.") from None
    if not isinstance(value, dict) or ("prompt" in value) == ("messages" in value):
        raise UserError("The line must be an object with 'prompt' or 'messages'.")
    if unknown := sorted(set(value) - _KEYS):
        raise UserError(f"Keys must be id, prompt, messages or sampling parameters, not {short(unknown[0])}.")
    return with_token_ids(value)


def with_token_ids(values: dict[str, Any]) -> dict[str, Any]:
    """Sampling parameters from JSON, whose keys are strings, with the token ids of logit_bias as numbers."""
    if not isinstance(biases := values.get("logit_bias"), dict):
        return values
    is_id = {key: key.isdecimal() and len(key) < 20 for key in biases}  # SamplingParams refuses other keys
    return values | {"logit_bias": {int(key) if is_id[key] else key: bias for key, bias in biases.items()}}


class Results:
    """A JSONL file that grows by whole lines; opening it removes a torn last line and finds the finished jobs."""

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
        self._digests = self._read()

    def _read(self) -> dict[int, str]:
        """The digests of the finished jobs, by their lines' numbers."""
        size, digests = 0, {}
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n") and line.startswith(_ROW_START[: len(line)]):
                    break  # torn by a crash; its job runs again
                try:
                    row = json.loads(line)
                    digests[int(row["line"])] = str(row["digest"])
                except (ValueError, KeyError, TypeError, RecursionError):
                    raise UserError(f"Line {number} of {self.path} is not a result; name another file.") from None
                size += len(line)
        self.file.truncate(size)
        return digests

    def has(self, line: int, digest: str) -> bool:
        """Whether a line's job is finished; refuses results of other prompts, another model or other settings."""
        if line not in self._digests:
            return False
        (prompt, _, settings), (known, _, used) = digest.partition("-"), self._digests[line].partition("-")
        if prompt != known:
            raise UserError(f"{self.path} was made from other prompts: line {line} differs.")
        if settings != used:
            raise UserError(f"{self.path} was made with another model or other flags; use those, or name another file.")
        return True

    def add(self, row: dict[str, Any]) -> None:
        # A lone surrogate (half a character), which an id may contain, is written as a JSON escape.
        data = json.dumps(row, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
        try:
            while data:
                data = data[self.file.write(data) :]
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be written: {error.strerror}; earlier results are kept, and the same command "
                "continues after them."
            ) from None

    def close(self) -> None:
        self.file.close()


@dataclass
class _Job:
    """A line whose samples run."""

    row: dict[str, Any]  # the first fields of its result
    samples: list[Request]
    running: int  # samples that have not ended


def run_jobs(
    llm: LLM,
    lines: list[tuple[int, str]],
    params: SamplingParams,
    chat: bool,
    results: Results,
    warn: Callable[[str], None],
    tick: Callable[[int], None],
) -> int:
    """Run the lines that have no result yet and write each result as it ends; returns how many lines were skipped.

    Lines are prompts, or JSON objects if the first one is; `tick` is called once per line, with the tokens generated.
    """
    as_objects = bool(lines) and lines[0][1].lstrip().startswith("{")
    settings = _digest(repr((replace(params, priority=0), chat, llm.fingerprint)))  # a priority changes no tokens
    pending, skipped = iter(lines), 0
    most = 2 * llm.engine.scheduler.max_batch  # so that as many wait as run
    deliveries: SimpleQueue[Delivery] = SimpleQueue()
    deliver = only_ends(deliveries.put)
    jobs: dict[int, _Job] = {}  # those that run, by their lines
    try:
        while True:
            while sum(job.running for job in jobs.values()) < most and (numbered := next(pending, None)) is not None:
                number, line = numbered
                digest = f"{_digest(line)}-{settings}"
                if results.has(number, digest):
                    tick(0)
                    continue
                try:
                    given = _parse(line) if as_objects else {"prompt": line}
                    own_id = {"id": given["id"]} if "id" in given else {}
                    samples = _requests(llm, number, given, params, chat)
                    jobs[number] = _Job({"line": number, **own_id, "digest": digest}, samples, len(samples))
                    llm.loop.submit(samples, deliver)
                except UserError as error:
                    jobs.pop(number, None)
                    warn(f"Line {number} was skipped: {error}")
                    skipped += 1
                    tick(0)
            if not jobs:
                return skipped
            for request, _ in receive(deliveries):
                job = jobs[request.index]
                job.running -= 1
                if not job.running:
                    del jobs[request.index]
                    ended = [sample.result() for sample in job.samples]
                    if any(result.finish_reason == "error" for result in ended):
                        warn(f"Line {request.index} was skipped: {STOPPED_EARLY}")
                        skipped += 1
                    else:
                        results.add(job.row | as_json(gather(ended)))
                    tick(sum(len(result.ids) for result in ended))
    finally:
        llm.loop.cancel(request for job in jobs.values() for request in job.samples)


def _requests(llm: LLM, line: int, job: dict[str, Any], params: SamplingParams, chat: bool) -> list[Request]:
    prompt: Any = job.get("prompt")
    if chat and isinstance(prompt, str):
        prompt = llm.encode_chat([{"role": "user", "content": prompt}])
    elif "messages" in job:
        prompt = llm.encode_chat(job["messages"])
    return llm.requests(prompt, replace(params, **{key: job[key] for key in _PARAMETERS & set(job)}), line)


def as_json(result: Result) -> dict[str, Any]:
    """A result as a JSON object, without the fields that were not asked for."""
    row = asdict(result)
    row["timing"]["tokens_per_second"] = len(result.ids) / result.timing.total if result.timing.total else 0.0
    if result.acceptance is not None:
        row["acceptance"] |= {"rates": result.acceptance.rates, "mean": result.acceptance.mean}
    row["samples"] = [as_json(sample) for sample in result.samples]
    return {key: value for key, value in row.items() if value is not None and (key not in _LISTS or value)}
