"""EngineClient: starts the engine's process, sends it requests, and starts it again when it dies."""

import asyncio
import os
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from genwright.errors import UserError
from genwright.serve.frames import HEADER, Message, Part, ToolUse, pack, unpack
from genwright.serve.http_errors import SHUTTING_DOWN, RequestError
from genwright.text.engine.engine_stats import EngineStats
from genwright.text.engine.request import SamplingParams
from genwright.text.settings import EngineConfig
from genwright.text.tokenizer.tokenizer import Tokenizer

MODULE = "genwright.serve.engine_process"
LONGEST_PAUSE = 60.0  # seconds before an engine that dies again and again is started again
DIED = "The engine process ended; it is being started again."


@dataclass(frozen=True)
class EngineSource:
    """What an engine's process loads."""

    model: str
    config: EngineConfig
    images: str | None = None


@dataclass
class EngineFacts:
    """What an engine's process says of itself once it is ready."""

    max_context: int
    max_batch: int
    vocab_size: int
    tokenizer: Tokenizer | None
    recommended: SamplingParams  # by the checkpoint
    classes: list[str] = field(default_factory=list)  # of the image model
    image_size: int | None = None  # None without an image model


class Stream:
    """The answer to one request: the parts of its sequences, as they arrive."""

    def __init__(self, client: "EngineClient", number: int, sequences: int):
        self.number, self.sequences, self.running = number, sequences, sequences
        self._client = client
        self._parts: list[Any] = []
        self._error: RequestError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, part: Any) -> None:
        self._parts.append(part)
        self._wake()

    def fail(self, error: RequestError) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[Any]:
        """All that has arrived since the last call, at least one part; raises what ended the request early."""
        while not self._parts:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        parts, self._parts = self._parts, []
        return parts

    async def parts(self) -> AsyncIterator[list[Part]]:
        """The parts until every sequence has ended."""
        while self.running:
            parts: list[Part] = await self.take()
            self.running -= sum(part.end is not None for part in parts)
            yield parts

    def close(self) -> None:
        """Cancel what still runs."""
        self._client.release(self)


class EngineClient:
    """The server's side of the engine's process."""

    def __init__(
        self,
        source: EngineSource,
        max_queue: int,
        on_stats: Callable[[EngineStats], None],
        on_death: Callable[[], None],
    ):
        self.source, self.max_queue, self.on_stats, self.on_death = source, max_queue, on_stats, on_death
        self.facts = EngineFacts(0, 0, 0, None, SamplingParams())
        self.ready = self.closing = False
        self._streams: dict[int, Stream] = {}
        self._count = self._sequences = 0
        self._process: Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self, progress: Callable[[int, int], None]) -> None:
        """Start the process and wait until the model is loaded; a UserError if it cannot be."""
        reader = await self._launch(progress)
        self._supervisor = asyncio.create_task(self._supervise(reader))

    def submit(self, prompts: list[list[int]], params: SamplingParams, use: ToolUse | None, *, whole: bool) -> Stream:
        """Start a request of `params.n` sequences for each prompt; with `whole` a sequence's only part is its end."""
        return self._send(len(prompts) * params.n, "run", prompts, params, use, whole)

    async def compute(self, verb: str, *arguments: Any) -> Any:
        """The result of a request that is not a stream of tokens: `images` or `embed`."""
        stream = self._send(1, verb, *arguments)
        try:
            result = (await stream.take())[0]
            stream.running = 0
            return result
        finally:
            stream.close()

    def check_ready(self) -> None:
        """Raise a RequestError if no request can be started now."""
        if self.closing:
            raise RequestError(SHUTTING_DOWN, None, 503, "shutting_down", retry_after=5)
        if not self.ready:
            raise RequestError(DIED, None, 503, "engine_unavailable", retry_after=5)

    def release(self, stream: Stream) -> None:
        """Forget a request; what still runs of it is cancelled."""
        if self._streams.pop(stream.number, None) is None:
            return
        self._sequences -= stream.sequences
        if stream.running and self._writer is not None:
            self._writer.write(pack(("cancel", stream.number)))

    def fail_all(self, error: RequestError) -> None:
        """End every open request with an error."""
        for stream in list(self._streams.values()):
            stream.fail(error)

    async def close(self) -> None:
        """End the process."""
        self.closing, self.ready = True, False
        if self._supervisor is not None:
            self._supervisor.cancel()
            with suppress(asyncio.CancelledError):
                await self._supervisor
        await self._end_process()

    def _send(self, sequences: int, verb: str, *arguments: Any) -> Stream:
        self.check_ready()
        room = self.facts.max_batch + self.max_queue
        if sequences > room:
            raise RequestError(f"The request has {sequences:,} sequences, but this server holds {room:,}.")
        if self._sequences + sequences > room:
            raise RequestError("The queue is full; try again later.", None, 503, "queue_full", retry_after=1)
        assert self._writer is not None
        self._count += 1
        try:
            data = pack((verb, self._count, *arguments))
        except RecursionError:
            raise RequestError("The request is nested too deeply.") from None
        stream = Stream(self, self._count, sequences)
        self._streams[stream.number] = stream
        self._sequences += sequences
        self._writer.write(data)
        return stream

    async def _launch(self, progress: Callable[[int, int], None]) -> asyncio.StreamReader:
        """Start a process and wait until it has loaded the model."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                MODULE,
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        reader, self._writer = await asyncio.open_connection(sock=ours)
        source = self.source
        self._writer.write(pack(("start", source.model, source.config.as_json(), source.images)))
        while (message := await _receive(reader)) is not None:
            if message[0] == "loading":
                progress(*message[1:])
            elif message[0] == "ready":
                self.facts, self.ready = EngineFacts(**message[1]), True
                return reader
            else:
                await self._end_process()
                raise UserError(message[1])
        code = await self._process.wait()
        raise UserError(f"The engine process ended with exit status {code} while it loaded the model.")

    async def _supervise(self, reader: asyncio.StreamReader) -> None:
        """Hand out what the engine sends; when it dies, answer what was open by errors and start it again."""
        while True:
            while (message := await _receive(reader)) is not None:
                self._dispatch(message)
            self.ready = False
            await self._end_process()
            self.on_death()
            self.fail_all(RequestError(DIED, None, 503, "engine_died", retry_after=5))
            print(f"genwright: {DIED}", file=sys.stderr, flush=True)
            reader = await self._launch_again()

    async def _launch_again(self) -> asyncio.StreamReader:
        pause = 0.5
        while True:
            try:
                return await self._launch(lambda done, total: None)
            except (UserError, OSError) as error:
                print(f"genwright: {error}", file=sys.stderr, flush=True)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _dispatch(self, message: Message) -> None:
        verb = message[0]
        if verb == "step":
            _, parts, stats = message
            if stats is not None:
                self.on_stats(stats)
            for part in parts:
                if (stream := self._streams.get(part.number)) is not None:
                    stream.put(part)
            return
        stream = self._streams.get(message[1])
        if stream is None:
            return
        if verb == "result":
            stream.put(message[2])
            return
        stream.running = 0
        if verb == "refused":
            stream.fail(RequestError(message[2]))
        else:
            stream.fail(RequestError("The server failed to compute this; its log has the reason.", status=500))

    async def _end_process(self) -> None:
        """Close the connection, which ends the process, and wait for it; one that does not end is killed."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._process is None:
            return
        try:
            await asyncio.wait_for(self._process.wait(), 5)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


async def _receive(reader: asyncio.StreamReader) -> Message | None:
    """The next message; None when the process has ended."""
    try:
        header = await reader.readexactly(HEADER.size)
        return unpack(await reader.readexactly(HEADER.unpack(header)[0]))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
