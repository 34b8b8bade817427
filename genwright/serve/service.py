"""Service: what every endpoint uses, such as the engine, the tokenizer and the settings."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from genwright.errors import UserError
from genwright.serve.access_log import AccessLog
from genwright.serve.engine_client import EngineClient, EngineSource
from genwright.serve.http_errors import RequestError
from genwright.serve.metrics import Metrics
from genwright.serve.server_settings import ServerSettings
from genwright.text.engine.request import SamplingParams
from genwright.text.settings import EngineConfig
from genwright.text.tokenizer.tokenizer import Tokenizer

FINGERPRINT = f"genwright-{version('genwright')}"
DEFAULT_TEMPERATURE = 1.0  # of OpenAI's and Anthropic's APIs, if the checkpoint recommends none


@dataclass
class Record:
    """What the log says of a request."""

    id: str
    model: str | None = None
    stream: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    first_token: float | None = None
    finish_reason: str | None = None
    error: str | None = None
    body_bytes: int = 0
    constrained_by: str | None = None  # the field that has the schema, regex, grammar or tools
    body: Any = None  # with --log-prompts
    started: float = field(default_factory=time.perf_counter)


class Service:
    """The models that are served, by name, and the settings."""

    def __init__(self, model: str, config: EngineConfig, settings: ServerSettings):
        self.settings, self.keys = settings, settings.read_keys()
        self.names = settings.model_name or (_name(model) if Path(model).exists() else model,)
        self.image_name = None if settings.images is None else _name(settings.images)
        self.created = int(time.time())
        self.metrics = Metrics(self.names[0])
        self.log = AccessLog(settings.log_file)
        source = EngineSource(model, config, settings.images)
        self.engine = EngineClient(source, settings.max_queue, self.metrics.set_stats, self.metrics.engine_died)

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's, which the engine's process has read."""
        return self.engine.facts.tokenizer

    def need_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise UserError("This model has no tokenizer, so that prompts must be token ids.")
        return self.tokenizer

    def model_name(self, given: Mapping[str, Any], record: Record) -> str:
        """The name by which a request asks for the text model."""
        name: str = given.get("model", self.names[0])
        if name not in self.names:
            raise RequestError(
                f"There is no model {name[:100]!r} here; this server has {', '.join(self.names)}.",
                "model",
                404,
                "model_not_found",
            )
        record.model = name
        return name

    def params(
        self, asked: Mapping[str, Any], prompts: list[list[int]], limit: int | None, param: str
    ) -> SamplingParams:
        """Sampling parameters for prompts; `limit` tokens of an answer were asked for by the field `param`."""
        longest, context = self.check_lengths(prompts, limit, param), self.engine.facts.max_context
        most = self.settings.max_tokens
        if limit is not None and most is not None and limit > most:
            raise RequestError(f"{param} must be at most {most:,} on this server, not {limit:,}.", param)
        vocab = self.engine.facts.vocab_size
        for name in ("logit_bias", "stop_ids"):
            if wrong := [token for token in asked.get(name, ()) if not 0 <= token < vocab]:
                raise RequestError(f"{name} must have token ids between 0 and {vocab - 1:,}, not {wrong[0]}.", name)
        recommended = self.engine.facts.recommended
        usual = {"temperature": recommended.temperature or DEFAULT_TEMPERATURE}
        tokens = min(context - longest, most or context) if limit is None else max(limit, 1)
        return replace(recommended, **{**usual, **asked, "max_new_tokens": tokens})

    def check_lengths(self, prompts: list[list[int]], limit: int | None, param: str) -> int:
        """The length of the longest prompt; raises a RequestError if it does not fit together with the answer."""
        longest, context = max(map(len, prompts)), self.engine.facts.max_context
        most = self.settings.max_prompt
        if most is not None and longest > most:
            sentence = f"The prompt has {longest:,} tokens, but this server accepts {most:,}."
            raise RequestError(sentence, None, code="context_length_exceeded")
        if longest + (limit or 1) > context:
            answer = "" if limit is None else f" and the answer may have {limit:,}"
            raise RequestError(  # in words by which clients know it
                f"This model's maximum context length is {context:,} tokens, but the prompt has {longest:,}{answer}.",
                param if longest < context else None,
                code="context_length_exceeded",
            )
        return longest


def _name(path: str) -> str:
    """The last part of a path; of `.`, the folder's name."""
    return Path(os.path.abspath(path)).name
