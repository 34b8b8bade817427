"""A server that runs for tests, in a process of its own."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Running:
    """A running server: its address, and plain requests without a client's library."""

    def __init__(self, process: "subprocess.Popen[str]", url: str, log: Path):
        self.process, self.url, self.log = process, url, log
        self.port = int(url.rpartition(":")[2])
        self.stderr: list[str] = []
        self._reading = threading.Thread(target=lambda: self.stderr.extend(process.stderr), daemon=True)
        self._reading.start()
        self.tls: ssl.SSLContext | None = None

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, timeout: float = 60
    ) -> tuple[int, Any]:
        """The status and the body of an answer; a body that is bytes is sent as it is."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        if self.url.startswith("https"):
            connection = HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=self.tls)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            content = response.read()
            self.headers = dict(response.getheaders())
        finally:
            connection.close()
        is_json = "json" in (response.getheader("content-type") or "")
        return response.status, json.loads(content) if is_json else content

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        return self.request("POST", path, body, headers)

    def open(self, path: str, body: Any) -> socket.socket:
        """Send a request and return the connection, without reading the answer."""
        data = json.dumps(body).encode()
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        return connection

    def metric(self, name: str) -> float:
        text = self.request("GET", "/metrics")[1].decode()
        return float(re.search(rf"^\w+:{name}(?:{{[^}}]*}})? (\S+)$", text, re.M)[1])

    def wait_for(self, metric: str, value: float) -> None:
        """Wait until a gauge has a value; the test's own time limit ends it otherwise."""
        while self.metric(metric) != value:
            time.sleep(0.02)

    def end(self) -> tuple[int, str]:
        """Wait until the server has ended; its exit status, and its standard error since it served."""
        code = self.process.wait(60)
        self._reading.join()
        return code, "".join(self.stderr)

    def engine_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def line(self) -> dict[str, Any]:
        """The log's line of the last request; it is written after the answer."""
        while not (
            found := [line for line in self.log.read_text().splitlines() if self.headers["x-request-id"] in line]
        ):
            time.sleep(0.01)
        return json.loads(found[0])


@contextmanager
def running(model: str | Path, folder: Path, *flags: str) -> Iterator[Running]:
    """A server on a free port, whose log is in a file of `folder`."""
    log = folder / "log.jsonl"
    flags = (*flags, *(() if "--log-file" in flags else ("--log-file", str(log))))
    command = [sys.executable, "-m", "genwright", "serve", str(model), "--device", "cpu", "--port", "0", *flags]
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        shown = ""
        while (line := process.stderr.readline()) and not (found := re.search(r"https?://\S+", line)):
            shown += line
        assert line, shown
        server = Running(process, found[0], log)
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()


def make_certificate(folder: Path) -> tuple[str, str]:
    """The paths of a new certificate for 127.0.0.1 and of its key."""
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject]
    subprocess.run([*made, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


def read_all(connection: socket.socket, end: bytes) -> bytes:
    """What a connection sends until `end`, or until it is closed."""
    received = b""
    while end not in received[-1000:] and (part := connection.recv(1 << 16)):
        received += part
    return received
