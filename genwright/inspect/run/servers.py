"""Servers that a script would start: each start is recorded, and the script goes on instead of serving for ever."""

from collections.abc import Callable
from typing import Any

from genwright.inspect.run.import_hooks import after_import


class Servers:
    """Stands in for the functions that serve until they are stopped; `record` is told the function and the server."""

    def __init__(self, record: Callable[[str, list[Any]], None]) -> None:
        self._record = record

    def take(self) -> None:
        """Stand in wherever a library is imported."""
        after_import(
            {
                "socketserver": lambda m: self._stand_in(m.BaseServer, "serve_forever", "socketserver.BaseServer"),
                "flask.app": lambda m: self._stand_in(m.Flask, "run", "flask.Flask"),
                "uvicorn.server": lambda m: self._stand_in(m.Server, "run", "uvicorn.Server"),
                "uvicorn.main": lambda m: self._stand_in(m, "run", "uvicorn"),
                "asyncio.base_events": self._asyncio,
                "aiohttp.web": lambda m: self._stand_in(m, "run_app", "aiohttp.web"),
            }
        )

    def _stand_in(self, owner: Any, name: str, place: str) -> None:
        setattr(owner, name, lambda *served, **_: self._record(f"{place}.{name}", [repr(s) for s in served[:1]]))

    def _asyncio(self, module: Any) -> None:
        async def serve_forever(server: Any) -> None:
            self._record("asyncio.Server.serve_forever", [repr(server)])

        module.Server.serve_forever = serve_forever
