"""`genwright serve`: what is wrong before it serves is one sentence."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def serve(*arguments: str) -> tuple[int, str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    command = [sys.executable, "-m", "genwright", "serve", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, shown = serve("--port", str(port))
    assert (
        code == 1
        and shown == f"genwright: The server cannot listen on 127.0.0.1 port {port}: Address already in use.\n"
    )


def test_a_model_that_is_not_there() -> None:
    code, shown = serve("nowhere/nothing", "--port", "0")
    assert code == 1 and shown.startswith("genwright: ") and shown.count("\n") == 1 and "nowhere/nothing" in shown


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--tls-cert", "cert.pem"], "--tls-cert FILE and --tls-key FILE must be given together."),
        (["--api-key-file", "nowhere"], "The key file nowhere cannot be read"),
        (["--api-key-file", "~nobody-here/keys"], "The key file ~nobody-here/keys cannot be read"),
        (["--api-key", "schlüssel"], "A key must be printable ASCII text that is not empty."),
        (["--log-file", "nowhere/log"], "The log file nowhere/log cannot be written: No such file or directory."),
        (["--log-file", "~nobody-here/log"], "The log file ~nobody-here/log cannot be written"),
        (["--max-queue", "-1"], "max_queue must be a whole number between 0 and"),
        (
            ["--tls-cert", "nowhere", "--tls-key", "nowhere"],
            "The certificate nowhere or its key nowhere cannot be read: No",
        ),
        (["--model", "nowhere/nothing"], "nowhere/nothing"),
    ],
)
def test_wrong_settings(flags: list[str], sentence: str) -> None:
    code, shown = serve("--port", "0", *flags)
    assert code == 1 and sentence in shown and "Traceback" not in shown
