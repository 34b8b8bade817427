"""The engine's process: runs the requests that the server sends, and answers with one message per step.

The server starts `python -m genwright.serve.engine_process FD`, where FD is its end of a socket pair, and ends it by
closing the other end.
"""

import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from genwright.errors import UserError
from genwright.images.sampling.pipeline import ImageModel
from genwright.serve.engine_connection import Connection
from genwright.serve.frames import End, Part, ToolUse
from genwright.text.engine.engine_stats import EngineStats, engine_stats
from genwright.text.engine.loop import Delivery
from genwright.text.engine.request import Request, SamplingParams
from genwright.text.llm import LLM
from genwright.text.settings import EngineConfig

STATS_INTERVAL = 0.25  # seconds between two measurements of a busy engine


class Cancelled(Exception):
    """The client of a computation has gone."""


class EngineProcess:
    """Runs requests on an LLM, by number, and tells the server what each step added to them."""

    def __init__(self, llm: LLM, images: ImageModel | None, connection: Connection):
        self.llm, self.images, self.connection = llm, images, connection
        self._running: dict[int, list[Request]] = {}  # by the request's number
        self._places: dict[Request, tuple[int, bool]] = {}  # its choice, and whether only its end is told
        self._told: dict[Request, int] = {}  # log-probabilities that the server has
        self._accepted: set[int] = set()  # numbers of requests that are not cancelled
        self._measured = 0.0
        self._computer, self._compilers = ThreadPoolExecutor(1), ThreadPoolExecutor(2)
        self._lock = threading.RLock()

    def run(
        self, number: int, prompts: list[list[int]], params: SamplingParams, use: ToolUse | None, whole: bool
    ) -> None:
        """Start the sequences of a request; with `whole` only their ends are told."""
        self._accepted.add(number)
        if use or params.schema or params.regex or params.grammar:  # which may take a while to compile
            self._compilers.submit(self._run, number, prompts, params, use, whole)
        else:
            self._run(number, prompts, params, use, whole)

    def _run(
        self, number: int, prompts: list[list[int]], params: SamplingParams, use: ToolUse | None, whole: bool
    ) -> None:
        try:
            params = self.llm.tool_params(params, *use) if use else params
            requests = [
                request for index, ids in enumerate(prompts) for request in self.llm.requests(ids, params, index)
            ]
            with self._lock:
                if number not in self._accepted:
                    return
                self._running[number] = requests
                self._places |= {request: (choice, whole) for choice, request in enumerate(requests)}
                self.llm.loop.submit(requests, partial(self._deliver, number))
        except UserError as error:
            self._forget(number)
            self.connection.send("refused", number, str(error))
        except Exception:
            traceback.print_exc()
            self._forget(number)
            self.connection.send("broken", number)

    def cancel(self, number: int) -> None:
        with self._lock:
            self._accepted.discard(number)
            requests = self._running.get(number, [])
        self.llm.loop.cancel(requests)

    def compute(self, number: int, work: Callable[..., Any], *arguments: Any) -> None:
        """Answer a request that is not a stream of tokens, on a thread of its own."""
        self._accepted.add(number)

        def check(*_: object) -> None:
            if number not in self._accepted:
                raise Cancelled

        def answer() -> None:
            try:
                check()
                self.connection.send("result", number, work(*arguments, check))
            except Cancelled:
                pass
            except UserError as error:
                self.connection.send("refused", number, str(error))
            except Exception:
                traceback.print_exc()
                self.connection.send("broken", number)
            self._accepted.discard(number)

        self._computer.submit(answer)

    def embed(self, prompts: list[list[int]], check: Callable[..., None]) -> list[list[float]]:
        found = []
        for ids in prompts:  # streams go on between two prompts
            check()
            found.append(self.llm.embed([ids])[0].tolist())
        return found

    def sample_images(self, asked: dict[str, Any], check: Callable[..., None]) -> Any:
        assert self.images is not None
        return self.images.sample(**asked, callback=check).array

    def _deliver(self, number: int, delivery: Delivery) -> None:
        """Called by the loop's thread after each step that changed sequences of a request, or when one failed."""
        if isinstance(delivery, BaseException):
            self._fail(number, delivery)
            return
        parts = []
        for request, piece in delivery:
            choice, whole = self._places[request]
            if whole and piece.finish_reason is None:
                continue
            told = self._told.get(request, 0)
            logprobs = request.logprobs[told:] if request.params.logprobs is not None else ()
            ids, text = (request.output, request.text) if whole else (piece.ids, piece.text)
            if self.llm.tokenizer is None:
                text = "".join(f"{token} " for token in ids)
            if piece.finish_reason is not None:
                del self._places[request]
                self._told.pop(request, None)
            elif logprobs:
                self._told[request] = told + len(logprobs)
            end = None if piece.finish_reason is None else _end(request)
            parts.append(Part(number, choice, text, len(ids), logprobs, end))
        if not any(request in self._places for request in self._running[number]):
            self._forget(number)
        stats = self._stats()
        if parts or stats:
            self.connection.send("step", parts, stats)

    def _fail(self, number: int, error: BaseException) -> None:
        """Answer a request that failed by itself; after any other error this process ends."""
        own = any(request.exception is error for request in self._running[number])
        self._forget(number)
        if own and isinstance(error, UserError):
            self.connection.send("refused", number, str(error))
            return
        traceback.print_exception(error)
        if not own:
            os._exit(1)  # the engine's state is unknown; the server starts a new process
        self.connection.send("broken", number)

    def _stats(self) -> EngineStats | None:
        """How busy the engine is, from time to time and when it has become idle."""
        now = time.monotonic()
        if self._places and now - self._measured < STATS_INTERVAL:
            return None
        self._measured = now
        return engine_stats(self.llm.engine)

    def _forget(self, number: int) -> None:
        with self._lock:
            self._accepted.discard(number)
            for request in self._running.pop(number, ()):
                self._places.pop(request, None)
                self._told.pop(request, None)


def _end(request: Request) -> End:
    result = request.result()
    timing = result.timing
    queued = (request.admitted or request.ended) - request.started
    return End(
        result.finish_reason,
        request.stop_text,
        timing.prompt_tokens,
        timing.cached_tokens,
        queued,
        timing.first_token,
        timing.total,
        result.prompt_logprobs,
    )


def main(descriptor: int) -> None:
    for each in (signal.SIGINT, signal.SIGTERM):  # sent to the whole process group; the server decides when to end
        signal.signal(each, signal.SIG_IGN)
    connection = Connection(descriptor)
    started = connection.receive()
    if started is None:
        return
    _, model, config, images = started
    try:
        settings = EngineConfig(**config)
        llm = LLM(
            model,
            settings,
            lambda done, total: connection.send("loading", done, total),
            lambda sentence: print(sentence, file=sys.stderr),
        )
        image_model = None if images is None else ImageModel(images, device=settings.device)
        known = facts(llm, image_model)
    except UserError as error:
        connection.send("failed", str(error))
        connection.receive()
        return
    engine = EngineProcess(llm, image_model, connection)
    gc.freeze()  # looking for garbage in all that was imported and loaded would stop a step for 0.1 s
    connection.send("ready", known)
    while (message := connection.receive()) is not None:
        verb, number, *rest = message
        if verb == "run":
            engine.run(number, *rest)
        elif verb == "cancel":
            engine.cancel(number)
        elif verb == "embed":
            engine.compute(number, engine.embed, *rest)
        else:
            engine.compute(number, engine.sample_images, *rest)
    os._exit(0)  # without waiting for threads that compute


def facts(llm: LLM, images: ImageModel | None) -> dict[str, Any]:
    """What the server must know of the models."""
    known: dict[str, Any] = {
        "max_context": llm.max_context,
        "max_batch": llm.engine.scheduler.max_batch,
        "vocab_size": llm.model.cfg.vocab_size,
        "tokenizer": llm.tokenizer,
        "recommended": llm.recommended_params(),
        "classes": [],
    }
    if images is not None:
        known["classes"] = list(images.description.label_names)
        known["image_size"] = images.config.image_size
    return known


if __name__ == "__main__":
    main(int(sys.argv[1]))
