"""Runs the server: listens, starts the engine, and ends when it is told to."""

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import uvicorn
import uvloop

from genwright.errors import UserError
from genwright.serve.app import new_app
from genwright.serve.http_errors import SHUTTING_DOWN, RequestError
from genwright.serve.server_settings import ServerSettings
from genwright.serve.service import Service
from genwright.text.settings import EngineConfig

BACKLOG = 2048
LAST_WORDS = 2  # seconds for the errors that end the answers which ran too long, after the shutdown timeout
Loading = Callable[[], AbstractContextManager[Callable[[int, int], None]]]  # shows the progress of loading


class Server(uvicorn.Server):
    """uvicorn's server, without its signal handlers, which would exit with the signal's status."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(model: str, config: EngineConfig, settings: ServerSettings, loading: Loading) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status."""
    listener = listen(settings.host, settings.port)
    with listener:
        service = Service(model, config, settings)
        return uvloop.run(_serve(service, listener, loading))


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; a UserError if the address is taken or not this machine's."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise _cannot_listen(host, port, error) from None
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> UserError:
    return UserError(f"The server cannot listen on {host} port {port}: {error.strerror or error}.")


async def _serve(service: Service, listener: socket.socket, loading: Loading) -> int:
    settings = service.settings
    try:
        uvicorn_config = uvicorn.Config(
            new_app(service),
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            log_level="error",  # not a line for every request that is no HTTP
            timeout_graceful_shutdown=None,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
        uvicorn_config.load()
    except OSError as error:
        files = f"certificate {settings.tls_cert} or its key {settings.tls_key}"
        raise UserError(f"The {files} cannot be read: {error.strerror or error}.") from None
    server, status = Server(uvicorn_config), 0
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()

    def stop(code: int) -> None:
        nonlocal status
        status = code
        if stopping.is_set():
            server.force_exit = True
        stopping.set()

    loop.add_signal_handler(signal.SIGTERM, stop, 0)
    loop.add_signal_handler(signal.SIGINT, stop, 130)
    stopped = asyncio.create_task(stopping.wait())
    try:
        with loading() as progress:
            starting = asyncio.create_task(service.engine.start(progress))
            await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return status
        await starting
        try:
            listener.listen(BACKLOG)
        except OSError as error:  # of two servers that have bound the address, the other was faster
            raise _cannot_listen(settings.host, settings.port, error) from None
        scheme = "http" if settings.tls_cert is None else "https"
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"Serving {', '.join(service.names)} on {scheme}://{shown}:{port}", file=sys.stderr, flush=True)
        running = asyncio.create_task(server.serve([listener]))
        await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
        await _drain(service, server, running)
    finally:
        stopped.cancel()
        await service.engine.close()
    return status


async def _drain(service: Service, server: Server, running: "asyncio.Task[None]") -> None:
    """Refuse new requests, let the running ones end, and answer those that take too long by an error."""
    service.engine.closing = True
    server.should_exit = True
    done, _ = await asyncio.wait({running}, timeout=service.settings.shutdown_timeout)
    if not done:
        service.engine.fail_all(RequestError(SHUTTING_DOWN, None, 503, "shutting_down", retry_after=5))
        done, _ = await asyncio.wait({running}, timeout=LAST_WORDS)
    if not done:
        server.force_exit = True
        running.cancel()
    with suppress(asyncio.CancelledError):
        await running
