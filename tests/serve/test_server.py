"""What can go wrong between loading a model and serving it."""

import asyncio
import errno
import socket
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
import uvicorn
from serve.running import make_certificate

from genwright.errors import UserError
from genwright.serve.server import _serve, _uvicorn_config, listen
from genwright.serve.server_settings import ServerSettings
from genwright.serve.service import Service
from genwright.text.settings import EngineConfig


def test_another_server_took_the_port_while_the_model_was_loaded() -> None:
    """Two servers may bind one port, but only one of them can listen."""
    with listen("127.0.0.1", 0) as ours, socket.socket() as other:
        port = ours.getsockname()[1]
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        service = Service("model", EngineConfig(), ServerSettings(port=port))
        service.engine.start = AsyncMock(side_effect=lambda progress: other.listen())
        with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use."):
            asyncio.run(_serve(service, ours, lambda: nullcontext(print)))


def test_an_encrypted_key_without_a_terminal_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(config: uvicorn.Config) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")  # as OpenSSL does where it cannot ask for the password

    monkeypatch.setattr(uvicorn.Config, "load", load)
    key = tmp_path / "key.pem"
    key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----")
    service = Service("model", EngineConfig(), ServerSettings(tls_cert="cert.pem", tls_key=str(key)))
    with pytest.raises(UserError, match=r"key\.pem is encrypted, and there is no terminal to ask for its password; "):
        _uvicorn_config(service)


def test_a_wrong_certificate_or_key_is_named(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (cert, key), (_, other) = make_certificate(tmp_path), make_certificate(tmp_path / "other")
    text = str(tmp_path / "text")
    Path(text).write_text("no PEM")
    expected = {
        (text, key): f"{text} is not a valid certificate in PEM format.",
        (key, cert): f"{key} is not a valid certificate in PEM format.",
        (cert, text): f"{text} is not a valid private key in PEM format, or its password is wrong.",
        (cert, other): f"The certificate {cert} cannot be used with the key {other}: key values mismatch.",
        (cert, "nowhere"): f"The certificate {cert} or its key nowhere cannot be read: No such file or directory.",
    }
    for (tls_cert, tls_key), sentence in expected.items():
        service = Service("model", EngineConfig(), ServerSettings(tls_cert=tls_cert, tls_key=tls_key))
        with pytest.raises(UserError) as found:
            _uvicorn_config(service)
        assert str(found.value) == sentence
