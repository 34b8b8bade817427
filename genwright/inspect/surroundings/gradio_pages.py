"""gradio's pages: instead of launching one, its handlers are called with what its own components give them."""

import contextlib
import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genwright.inspect.surroundings.import_hooks import after_import
from genwright.inspect.surroundings.visitor import Visitor, handler_name

_MEDIA = {
    **dict.fromkeys(("Image", "ImageEditor", "ImageMask", "Sketchpad", "Paint"), "image"),
    "Audio": "audio",
    "Microphone": "audio",
    "Video": "video",
}
_KEPT = {"State", "Variable", "Chatbot", "JSON", "Label", "HTML", "Markdown", "Button", "Plot", "Gallery"}


@dataclass(frozen=True)
class Event:
    """One event of a page: the function, the components that it reads and writes, and the event before it."""

    number: int
    function: Any
    inputs: list[Any]
    outputs: list[Any]
    after: int | None
    as_dict: bool = False
    is_batch: bool = False


class GradioPages:
    """Stands in for `launch`; `record` is told the page."""

    def __init__(self, visitor: Visitor, record: Callable[[str, list[Any]], None]) -> None:
        self._visitor, self._record = visitor, record
        self._examples: list[Any] = []
        self._chats: list[Any] = []
        self._folder = Path("gradio")
        self._payloads: dict[int, Any] = {}  # what each component holds, as the browser would

    def install(self) -> None:
        """Stand in wherever gradio is imported."""
        os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
        after_import(
            {
                "gradio.blocks": self._blocks,
                "gradio.helpers": lambda m: _remember(m.Examples, self._examples, {"cache_examples": False}),
                "gradio.chat_interface": lambda m: _remember(m.ChatInterface, self._chats, {"cache_examples": False}),
            }
        )

    def _blocks(self, module: Any) -> None:
        def launch(page: Any, *args: Any, **kwargs: Any) -> tuple[Any, str, str]:
            name = f"gradio.{type(page).__name__}.launch"
            self._record(name, [])
            with self._visitor.visiting(name):
                self._visit(page)
            return None, "", ""

        self._folder = Path(module.__file__).parent
        module.Blocks.launch = launch

    def _visit(self, page: Any) -> None:
        chats, self._chats[:] = list(self._chats), []
        for chat in chats:
            self._chat(chat)
        events = {e.number: e for e in _events(page) if callable(e.function) and not self._is_gradios_own(e.function)}
        chosen = self._visitor.among([e.function for e in events.values()])
        done: set[tuple[Any, ...]] = set()
        for event in events.values():
            key = (handler_name(event.function), tuple(map(id, event.inputs)))
            if event.function in chosen and key not in done:
                done.add(key)
                self._once_per_example(event, events)

    def _is_gradios_own(self, function: Any) -> bool:
        code = getattr(function, "__code__", None)
        return code is not None and self._folder in Path(code.co_filename).parents

    def _once_per_example(self, event: Event, events: dict[int, Event]) -> None:
        rows = [
            (examples.inputs, row if isinstance(row, list | tuple) else [row])
            for examples in self._examples
            if any(i is mine for i in examples.inputs for mine in event.inputs)
            for row in examples.examples
        ]
        for inputs, row in rows or [([], [])]:
            for component, value in zip(inputs, row, strict=False):
                if value is not None:
                    self._payloads[id(component)] = _sent(component, value)
            for step in _chain(event, events):
                self._run(step)

    def _run(self, event: Event) -> None:
        names = _parameters(event.function)
        names += [f"input_{i}" for i in range(len(names), len(event.inputs))]
        given = {n: self._received(c, n) for n, c in zip(names, event.inputs, strict=False)}
        values: list[Any] = list(given.values())
        if event.as_dict:
            values = [dict(zip(event.inputs, values, strict=True))]
        if event.is_batch:
            values = [[v] for v in values]
        name = handler_name(event.function)
        result = self._visitor.call(name, given, lambda: event.function(*_with_special(event.function, values)))
        self._show(event, result)

    def _show(self, event: Event, result: Any) -> None:
        """Put a handler's result into the components that it is for, where the next handler finds it."""
        if isinstance(result, dict) and result and all(any(k is o for o in event.outputs) for k in result):
            shown = list(result.items())
        else:
            shown = list(zip(event.outputs, [result] if len(event.outputs) == 1 else result or (), strict=False))
        for component, value in shown:
            if isinstance(value, dict) and value.get("__type__") == "update":
                if "value" not in value:
                    continue
                value = value["value"]
            self._payloads[id(component)] = _sent(component, value)

    def _received(self, component: Any, name: str) -> Any:
        """What a handler receives from a component: what it holds, or what a visitor would put into it."""
        payload = self._payloads.get(id(component), getattr(component, "value", None))
        model: Any = getattr(component, "data_model", None)
        if isinstance(payload, dict | list) and hasattr(model, "model_validate"):
            with contextlib.suppress(Exception):
                payload = model.model_validate(payload)
        kinds = [k.__name__ for k in type(component).__mro__]
        if name in self._visitor.arguments:
            payload = _sent(component, self._visitor.arguments[name])
        elif payload in (None, "") and not _KEPT & set(kinds) and "negative" not in name:
            payload = _sent(component, self._chosen(component, name, kinds))
        try:
            return component.preprocess(payload)
        except Exception:  # a component of another kind or version: the value as it is
            return payload

    def _chosen(self, component: Any, name: str, kinds: list[str]) -> Any:
        held = getattr(component, "choices", None) or []
        choices = tuple(c[-1] if isinstance(c, list | tuple) and c else c for c in held)
        label = str(getattr(component, "label", "") or "")
        kind = "float" if {"Number", "Slider"} & set(kinds) else "bool" if "Checkbox" in kinds else ""
        medium = next((_MEDIA[k] for k in kinds if k in _MEDIA), "")
        if "CheckboxGroup" in kinds or getattr(component, "multiselect", False):
            return list(choices[:1])
        is_text = {"Textbox", "TextArea", "MultimodalTextbox"} & set(kinds)
        value = self._visitor.value("text" if is_text else name, kind, label, choices, medium)
        return {"text": value, "files": []} if "MultimodalTextbox" in kinds else value

    def _chat(self, chat: Any) -> None:
        extra = [c for c in getattr(chat, "additional_inputs", None) or [] if hasattr(c, "preprocess")]
        names = [*_parameters(chat.fn), *(f"input_{i}" for i in range(2 + len(extra)))]
        rows = [r if isinstance(r, list | tuple) else [r] for r in chat.examples or []]
        for row in rows or [[self._visitor.value(names[0], about="message")]]:
            message = row[0]
            if getattr(chat, "multimodal", False) and isinstance(message, str):
                message = {"text": message, "files": []}
            for component, value in zip(extra, row[1:], strict=False):
                self._payloads[id(component)] = _sent(component, value)
            values = [message, [], *(self._received(c, n) for c, n in zip(extra, names[2:], strict=False))]
            given = dict(zip(names, values, strict=False))
            call = _caller(chat.fn, values)
            self._visitor.call(handler_name(chat.fn), given, call)


def _caller(function: Any, values: list[Any]) -> Callable[[], Any]:
    return lambda: function(*_with_special(function, values))


def _events(page: Any) -> list[Event]:
    """A page's events; before gradio 4.30 its functions are a list, and what they read and write stands beside them."""
    if isinstance(page.fns, dict):
        return [
            Event(number, f.fn, list(f.inputs), list(f.outputs), f.trigger_after, f.inputs_as_dict, f.batch)
            for number, f in page.fns.items()
        ]
    found: list[Event] = []
    for number, (function, data) in enumerate(zip(page.fns, page.dependencies, strict=False)):
        inputs, outputs = ([page.blocks[i] for i in data[key]] for key in ("inputs", "outputs"))
        as_dict = getattr(function, "inputs_as_dict", False)
        is_batch = data.get("batch", False)
        found.append(Event(number, function.fn, inputs, outputs, data.get("trigger_after"), as_dict, is_batch))
    return found


def _chain(event: Event, events: dict[int, Event]) -> list[Event]:
    """The events that come before one (`.click(first).then(second)`), and that one."""
    chain = [event]
    while chain[0].after in events and len(chain) < len(events):
        chain.insert(0, events[chain[0].after])
    return chain


def _parameters(function: Any) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _with_special(function: Any, values: list[Any]) -> list[Any]:
    """The values with what gradio adds for parameters such as a request or a progress bar."""
    with contextlib.suppress(Exception):
        from gradio.helpers import special_args

        return list(special_args(function, list(values))[0])
    return values


def _sent(component: Any, value: Any) -> Any:
    """A value of Python as the browser would hold it."""
    try:
        return component.postprocess(value)
    except Exception:
        return value


def _remember(kind: Any, found: list[Any], settings: dict[str, Any]) -> None:
    """Keep each object of a class that is made, with some of its settings changed."""
    original = kind.__init__

    @functools.wraps(original)
    def __init__(made: Any, *args: Any, **kwargs: Any) -> None:
        original(made, *args, **(kwargs | {k: v for k, v in settings.items() if k in kwargs}))
        found.append(made)

    kind.__init__ = __init__
