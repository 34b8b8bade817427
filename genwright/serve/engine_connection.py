"""Connection: the engine process's end of the socket pair that it shares with the server."""

import socket
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from genwright.serve.frames import HEADER, Message, pack, unpack


class Connection:
    """Messages to and from the server; `send` never waits for it.

    Parts that wait to be sent become one message, so that a step of many sequences is one.
    """

    def __init__(self, descriptor: int):
        self._socket = socket.socket(fileno=descriptor)
        self._outbox: SimpleQueue[Message] = SimpleQueue()
        threading.Thread(target=self._write, daemon=True).start()

    def send(self, *message: Any) -> None:
        self._outbox.put(message)

    def _write(self) -> None:
        try:
            while True:
                messages = [self._outbox.get()]
                with suppress(Empty):
                    while True:
                        messages.append(self._outbox.get_nowait())
                self._socket.sendall(b"".join(map(pack, _merged(messages))))
        except OSError:  # the server is gone, which `receive` notices too
            pass

    def receive(self) -> Message | None:
        """The next message; None when the server has closed the connection."""
        header = self._read(HEADER.size)
        data = self._read(HEADER.unpack(header)[0]) if header else b""
        return unpack(data) if data else None

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._socket.recv(min(size - len(data), 1 << 20))
            except OSError:
                return b""
            if not part:
                return b""
            data += part
        return bytes(data)


def _merged(messages: list[Message]) -> list[Message]:
    """The messages, with all parts of sequences in the first one."""
    steps = [message for message in messages if message[0] == "step"]
    if len(steps) < 2:
        return messages
    parts = [part for _, found, _ in steps for part in found]
    measured = [stats for _, _, stats in steps if stats is not None]
    others = [message for message in messages if message[0] != "step"]
    return [("step", parts, measured[-1] if measured else None), *others]
