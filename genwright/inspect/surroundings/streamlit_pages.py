"""streamlit's pages: the script is the page, and runs once with everything filled in and its buttons pressed."""

import functools
import io
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from genwright.inspect.media.samples import MEDIUM_OF
from genwright.inspect.surroundings.import_hooks import after_import
from genwright.inspect.surroundings.visitor import Visitor

_BUTTONS = ("button", "form_submit_button")
_TEXTS = ("text_input", "text_area", "chat_input")
_OPTIONS = ("selectbox", "radio", "select_slider")
_FILES = {"file_uploader": "", "camera_input": "image", "audio_input": "audio"}
_UNDOING = re.compile(r"clear|reset|delete|remove|cancel|stop|log ?out|restart", re.IGNORECASE)


class StreamlitPages:
    """Stands in for the widgets that nobody fills in; `record` is told the page once."""

    def __init__(self, visitor: Visitor, record: Callable[[str, list[Any]], None]) -> None:
        self._visitor, self._record = visitor, record
        self._said: set[str] = set()

    def install(self) -> None:
        """Stand in wherever streamlit is imported; its package binds the widgets right after this module is."""
        after_import(
            {"streamlit.delta_generator": self._widgets, "streamlit.commands.execution_control": self._control}
        )

    def _control(self, module: Any) -> None:
        def stop() -> None:
            raise SystemExit(0)

        module.stop = stop

    def _widgets(self, module: Any) -> None:
        self._record("streamlit", [])
        for place in ("scriptrunner", "scriptrunner_utils"):  # each widget would be told that no server runs
            logging.getLogger(f"streamlit.runtime.{place}.script_run_context").addFilter(lambda _: False)
        fill: dict[str, Callable[..., Any]] = dict.fromkeys(_BUTTONS, self._press)
        fill |= dict.fromkeys(_TEXTS, self._write) | dict.fromkeys(_OPTIONS, self._select)
        fill |= {name: functools.partial(self._upload, medium) for name, medium in _FILES.items()}
        for name, filled in fill.items():
            if hasattr(module.DeltaGenerator, name):
                self._stand_in(module.DeltaGenerator, name, filled)

    def _stand_in(self, owner: Any, name: str, filled: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def widget(place: Any, label: str = "", *args: Any, **kwargs: Any) -> Any:
            value = original(place, label, *args, **kwargs)
            given = self._visitor.arguments.get(label, self._visitor.arguments.get(str(kwargs.get("key"))))
            if given is None and (value is None or value is False or value == ""):
                given = filled(name, label, *args, **kwargs)
            return value if given is None else given

        setattr(owner, name, widget)

    def _press(self, name: str, label: str, *args: Any, **kwargs: Any) -> bool:
        """Press a button once; the function that it calls is called as streamlit would, before the page goes on."""
        if f"{name} {label}" in self._said or kwargs.get("disabled") or _UNDOING.search(label):
            return False
        self._said.add(f"{name} {label}")
        if callable(kwargs.get("on_click")):
            kwargs["on_click"](*(kwargs.get("args") or ()), **(kwargs.get("kwargs") or {}))
        return True

    def _write(self, name: str, label: str, *args: Any, **kwargs: Any) -> str | None:
        if name == "chat_input" and label in self._said:
            return None
        self._said.add(label)
        return str(self._visitor.value(label or str(kwargs.get("key", "")), "str"))

    def _select(self, name: str, label: str, options: Any = (), *args: Any, **kwargs: Any) -> Any:
        return next(iter(options), None)

    def _upload(self, medium: str, name: str, label: str, *args: Any, **kwargs: Any) -> Any:
        """A sample file as an upload: a binary stream with a name, a type and a size."""
        wanted = args[0] if args else kwargs.get("type") or []
        suffixes = [f".{str(s).lstrip('.').lower()}" for s in ([wanted] if isinstance(wanted, str) else wanted)]
        medium = medium or next((MEDIUM_OF[s] for s in suffixes if s in MEDIUM_OF), "")
        path = Path(str(self._visitor.value(label, "path", label, medium=medium)))
        upload = io.BytesIO(path.read_bytes() if path.is_file() else str(path).encode())
        for key, value in {
            "name": path.name,
            "size": upload.getbuffer().nbytes,
            "type": f"{medium}/{path.suffix[1:]}",
        }.items():
            setattr(upload, key, value)
        several = bool(args[1:2] and args[1]) or bool(kwargs.get("accept_multiple_files"))
        return [upload] if several else upload
