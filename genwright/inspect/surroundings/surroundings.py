"""What surrounds the calls of a run: the keyboard, windows, pages and servers, each with its records."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from genwright.inspect.records.call_site import CallSites
from genwright.inspect.records.records import Record, RecordFolder, describe_file
from genwright.inspect.records.summary import summarise
from genwright.inspect.surroundings.gradio_pages import GradioPages
from genwright.inspect.surroundings.keyboard import Keyboard
from genwright.inspect.surroundings.servers import Servers
from genwright.inspect.surroundings.streamlit_pages import StreamlitPages
from genwright.inspect.surroundings.visitor import Visitor
from genwright.inspect.surroundings.windows import Windows

Served = Callable[[str, list[Any]], None]
Shown = Callable[[str, list[Any], Path | None], None]


def install_pages_and_windows(visitor: Visitor, served: Served, pictures: Path, shown: Shown) -> None:
    """From here on nobody is needed to look at windows or to visit pages and servers."""
    Windows(pictures, shown).install()
    Servers(visitor, served).install()
    GradioPages(visitor, served).install()
    StreamlitPages(visitor, served).install()


class Surroundings:
    """Stands in for the person at the keyboard, and records what that person would have seen and done."""

    def __init__(self, folder: RecordFolder, sites: CallSites) -> None:
        self._folder, self._sites = folder, sites
        self.keyboard = Keyboard(self._answered)

    def install(self, ui: dict[str, Any]) -> None:
        """From here on nobody is needed; `ui` is the scenario's table of that name."""
        self.keyboard.install()
        visitor = Visitor(ui.get("handler", []), ui.get("arguments", {}), self._handled)
        install_pages_and_windows(visitor, self._served, self._folder.path / "windows", self._shown)

    def _answered(self, name: str, prompt: str, answer: str | None) -> None:
        event = "answer" if answer is not None else "end-of-answers"
        self._note(event, name, [prompt], result=answer)

    def _shown(self, name: str, values: list[Any], picture: Path | None) -> None:
        files = [describe_file(picture, "window", True)] if picture else []
        self._note("window", name, [summarise(v) for v in values], files=files)

    def _served(self, name: str, server: list[Any]) -> None:
        print(f"genwright: {name} would wait for visitors; it is recorded, not started.", file=sys.stderr)
        self._note("server", name, server)

    def _handled(self, name: str, given: dict[str, Any], result: Any, error: BaseException | None) -> None:
        told = {k: summarise(v) for k, v in given.items()}
        failure = {"type": type(error).__name__, "message": str(error), "traceback": []} if error else None
        status = "raised" if error else "returned"
        self._note("handler", name, [], keywords=told, result=summarise(result), exception=failure, status=status)

    def _note(self, event: str, name: str, arguments: list[Any], **told: Any) -> None:
        keywords = told.pop("keywords", {})
        record = Record(self._folder.next_number(), event, name, arguments, keywords, **{"status": "returned", **told})
        record.file, record.line = self._sites.place(name)
        record.seconds = 0.0
        self._folder.write(record)
