"""POST /v1/completions, as OpenAI's clients speak it."""

import secrets
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from genwright.serve.field_checks import object_of
from genwright.serve.generation import Choice, Parts, complete, open_stream, prepare, usage
from genwright.serve.http_errors import RequestError
from genwright.serve.logprobs import TokenTexts
from genwright.serve.request_fields import COMPLETION, constraint, sampling_fields
from genwright.serve.service import FINGERPRINT, Service
from genwright.serve.sse import DONE, EventStream, compact, event, quote
from genwright.text.engine.request import SamplingParams

SCHEMA = object_of(COMPLETION, "prompt")
DEFAULT_TOKENS = 16  # of an answer, in OpenAI's API


async def completions(service: Service, request: Request, given: dict[str, Any]) -> dict[str, Any] | EventStream:
    name = service.model_name(given, request.scope["record"])
    request.scope["record"].constrained_by = next((key for key in ("regex", "grammar") if key in given), None)
    prompts = await prepare(request, prompt_ids, service, given["prompt"])
    asked = sampling_fields(given) | constraint(given, None, "")
    echo, limit = given.get("echo", False), given.get("max_tokens", DEFAULT_TOKENS)
    if limit == 0 and not echo:
        raise RequestError("max_tokens must be at least 1 without echo.", "max_tokens")
    if "logprobs" in given:
        asked["logprobs"] = given["logprobs"]
        if echo:
            asked["prompt_logprobs"] = True
    params = service.params(asked, prompts, limit, "max_tokens")
    writer = CompletionWriter(service, name, prompts, params, echo, limit)
    if given.get("stream"):
        if echo:
            raise RequestError("echo cannot be streamed.", "echo")
        include_usage = bool(given.get("stream_options", {}).get("include_usage"))
        return EventStream(writer.events(await open_stream(service, request, prompts, params), include_usage))
    if "stream_options" in given:
        raise RequestError("stream_options needs stream to be true.", "stream_options")
    choices = await complete(service, request, prompts, params)
    return {
        **writer.head(),
        "choices": [writer.choice(index, choice) for index, choice in enumerate(choices)],
        "usage": usage(choices, params.n).openai(),
    }


def prompt_ids(service: Service, prompt: Any, field: str = "prompt") -> list[list[int]]:
    """The token ids of one or more prompts, each a text or token ids."""
    single = isinstance(prompt, str) or isinstance(prompt[0], int)
    found = []
    for index, each in enumerate([prompt] if single else prompt):
        place = field if single else f"{field}[{index}]"
        ids = service.need_tokenizer().encode(each) if isinstance(each, str) else each
        if not ids:
            raise RequestError(f"{place} has no tokens.", place)
        vocab = service.engine.facts.vocab_size
        wrong = next((token for token in ids if not 0 <= token < vocab), None)
        if wrong is not None:
            raise RequestError(
                f"{place} must have token ids between 0 and {vocab - 1:,}, not {str(wrong)[:20]}.", place
            )
        found.append(ids)
    return found


@dataclass
class CompletionWriter:
    """Writes the answers of one request."""

    service: Service
    model: str
    prompts: list[list[int]]
    params: SamplingParams
    echo: bool
    limit: int

    def __post_init__(self) -> None:
        self.id = f"cmpl-{secrets.token_hex(12)}"
        self.tokens = TokenTexts(self.service.tokenizer)

    def head(self) -> dict[str, Any]:
        known = {"id": self.id, "object": "text_completion", "created": int(time.time()), "model": self.model}
        return {**known, "system_fingerprint": FINGERPRINT}

    def choice(self, index: int, choice: Choice) -> dict[str, Any]:
        """A whole answer; with echo, after its prompt."""
        assert choice.end is not None
        prompt = self.prompts[index // self.params.n]
        if self.limit == 0:  # the engine generates at least one token
            choice.text, choice.logprobs, choice.tokens = "", [], 0
        text, logprobs = choice.text, None
        if self.echo:
            text = self._prompt_text(prompt) + text
        if self.params.logprobs is not None:
            known = list(choice.end.prompt_logprobs or []) if self.echo else []
            ids = [*(prompt if self.echo else []), *(each.id for each in choice.logprobs)]
            logprobs = self.tokens.completion([*known, *choice.logprobs], ids, 0)
        found: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": "length" if self.limit == 0 else choice.end.reason,
        }
        if self.params.prompt_logprobs and not self.echo:
            found["prompt_logprobs"] = self.tokens.prompt(choice.end.prompt_logprobs or [])
        return found

    def _prompt_text(self, prompt: list[int]) -> str:
        if self.service.tokenizer is None:
            return "".join(f"{token} " for token in prompt)
        return self.service.tokenizer.decode(prompt)

    async def events(self, parts: Parts, include_usage: bool) -> AsyncGenerator[bytes, None]:
        """The chunks of a streamed answer, as bytes."""
        head = compact(self.head())[:-1] + (b',"usage":null' if include_usage else b"")
        start = b"data: " + head + b',"choices":[{"index":'
        choices = [Choice() for _ in range(len(self.prompts) * self.params.n)]
        try:
            async for found in parts:
                written = []
                for part in found:
                    choice = choices[part.choice]
                    logprobs = b"null"
                    if part.logprobs:
                        ids = [each.id for each in part.logprobs]
                        logprobs = compact(self.tokens.completion(part.logprobs, ids, len(choice.text)))
                    choice.add(part)
                    if not (part.text or part.logprobs or part.end):
                        continue
                    text = quote(part.text).encode()
                    reason = b"null" if part.end is None else quote(part.end.reason).encode()
                    form = b'%b%d,"text":%b,"logprobs":%b,"finish_reason":%b}]}\n\n'
                    written.append(form % (start, part.choice, text, logprobs, reason))
                if written:
                    yield b"".join(written)
            if include_usage:
                yield event({**self.head(), "choices": [], "usage": usage(choices, self.params.n).openai()})
        except RequestError as error:
            yield event(error.openai())
        finally:
            await parts.aclose()
        yield DONE
