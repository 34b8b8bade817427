"""What can go wrong between loading a model and serving it."""

import asyncio
import socket
from contextlib import nullcontext
from unittest.mock import AsyncMock

import pytest

from genwright.errors import UserError
from genwright.serve.server import _serve, listen
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
