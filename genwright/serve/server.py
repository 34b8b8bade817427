"""Runs the server: listens, starts the engine, and ends when it is told to."""

import asyncio
import errno
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import uvicorn
import uvloop

from genwright.arguments import counted
from genwright.errors import UserError
from genwright.serve.app import new_app
from genwright.serve.http_errors import SHUTTING_DOWN, RequestError
from genwright.serve.server_settings import ServerSettings
from genwright.serve.service import Service
from genwright.text.settings import EngineConfig

BACKLOG = 2048
FLUSH_SECONDS = 2  # for clients to read the errors that end their answers
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


def _uvicorn_config(service: Service) -> uvicorn.Config:
    settings = service.settings
    config = uvicorn.Config(
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
    try:
        config.load()
    except OSError as error:
        raise UserError(_tls_sentence(settings, error)) from None
    return config


def _tls_sentence(settings: ServerSettings, error: OSError) -> str:
    """What is wrong with the certificate or its key; OpenSSL does not say which of them it cannot parse."""
    cert, key = settings.tls_cert, settings.tls_key
    if error.errno == errno.EINVAL and key is not None and b"ENCRYPTED" in Path(key).read_bytes():
        return f"{key} is encrypted, and there is no terminal to ask for its password; pass a key without one."
    if not isinstance(error, ssl.SSLError):
        return f"The certificate {cert} or its key {key} cannot be read: {error.strerror or error}."
    if error.reason is not None:  # both could be parsed
        return f"The certificate {cert} cannot be used with the key {key}: {error.reason.replace('_', ' ').lower()}."
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cert)
    except ssl.SSLError:
        return f"{cert} is not a valid certificate in PEM format."
    return f"{key} is not a valid private key in PEM format, or its password is wrong."


async def _serve(service: Service, listener: socket.socket, loading: Loading) -> int:
    settings = service.settings
    server, status = Server(_uvicorn_config(service)), 0
    loop = asyncio.get_running_loop()
    stopped, second_signal = loop.create_future(), loop.create_future()  # done at the first and the second signal

    def stop(code: int) -> None:
        nonlocal status
        status = code
        if not stopped.done():
            stopped.set_result(None)
        elif not second_signal.done():
            second_signal.set_result(None)

    loop.add_signal_handler(signal.SIGTERM, stop, 0)
    loop.add_signal_handler(signal.SIGINT, stop, 130)
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
        await _drain(service, server, running, second_signal)
    finally:
        await service.engine.close()
    return status


async def _drain(
    service: Service, server: Server, running: "asyncio.Task[None]", second_signal: "asyncio.Future[None]"
) -> None:
    """Refuse new requests and let the running ones end; at the timeout or a second signal, errors end them."""
    service.engine.closing = True
    server.should_exit = True
    answers, seconds = len(server.server_state.tasks), service.settings.shutdown_timeout
    if answers and seconds:
        waiting = f"Waiting up to {seconds:g} s for {counted(answers, 'answer')} to end"
        with suppress(OSError):  # the Ctrl-C may have ended the reader too, such as tee
            print(f"{waiting}; another Ctrl-C or SIGTERM ends the server at once.", file=sys.stderr, flush=True)
    await asyncio.wait({running, second_signal}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    if not running.done():
        service.engine.fail_all(RequestError(SHUTTING_DOWN, None, 503, "shutting_down", retry_after=5))
        await asyncio.wait({running}, timeout=FLUSH_SECONDS)
    if not running.done():
        for connection in list(server.server_state.connections):
            connection.transport.abort()  # its request ends as if the client had gone away
    await running
