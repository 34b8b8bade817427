"""Chat templates: Jinja sources from a checkpoint, from a file, or from this package by name."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from genwright.arguments import short
from genwright.errors import UserError
from genwright.text.config_file import read_text

_NAMED = Path(__file__).parent / "chat_templates"  # NAME.jinja, for checkpoints that have no template
Messages = list[dict[str, Any]]
_TEXT_PARTS = ("text", "input_text", "output_text")  # of chat completions and of responses
_MAX_SOURCE = 64_000  # characters; the largest published templates have about 20,000


def template_names() -> list[str]:
    """The names of the templates in this package."""
    return sorted(path.stem for path in _NAMED.glob("*.jinja"))


def find_template(name_or_file: str) -> str:
    """The source of a template, by its name or from a file."""
    if name_or_file in template_names():
        return read_text(_NAMED / f"{name_or_file}.jinja")
    path = Path(os.path.expanduser(name_or_file))
    if not path.is_file():
        names = ", ".join(template_names())
        raise UserError(f"There is no chat template {name_or_file!r}; pass {names} or the path of a Jinja file.")
    return read_text(path)


def with_texts(messages: Any) -> Messages:
    """Messages whose contents are texts: parts are joined, and a content that a tool call replaces is empty."""
    if not (isinstance(messages, list) and messages and all(isinstance(m, dict) and "role" in m for m in messages)):
        raise UserError('Chat messages must be a list of {"role": ..., "content": ...} objects, at least one.')
    found = []
    for index, message in enumerate(messages):
        content = joined(message.get("content"))
        if content is None and message["role"] == "assistant" and message.get("tool_calls"):
            content = ""
        if not isinstance(content, str):
            raise UserError(
                f'messages[{index}].content must be a text or a list of {{"type": "text", "text": ...}} parts, '
                f"not {short(content)}."
            )
        found.append({**message, "content": content})
    return found


def joined(content: Any) -> Any:
    """The text of a content that is a list of text parts, as OpenAI's clients send it; another content as it is."""
    if isinstance(content, list) and all(map(_is_text_part, content)):
        return "".join(part["text"] for part in content)
    return content


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str)


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str) -> None:
        if len(source) > _MAX_SOURCE:
            raise UserError(f"The chat template must have at most {_MAX_SOURCE:,} characters, not {len(source):,}.")
        from jinja2 import TemplateSyntaxError

        from genwright.text.tokenizer.template_sandbox import SandboxedTemplate

        try:
            self._template = SandboxedTemplate(source)
        except TemplateSyntaxError as error:
            raise UserError(f"The chat template is not valid at line {error.lineno}: {_sentence(error)}.") from error
        except Exception as error:  # too deeply nested for Jinja or Python
            raise UserError(f"The chat template cannot be compiled: {_sentence(error)}.") from error

    def render(
        self,
        messages: Messages,
        special_tokens: dict[str, str],
        mark: Callable[[Messages], Messages] | None = None,
        tools: Messages | None = None,
    ) -> str:
        """Render a conversation with the prompt for the assistant's answer; `mark` is applied to all texts first."""
        messages = with_texts(messages)
        try:
            # A copy of plain data, so that the template cannot reach the caller's objects.
            messages, tools = json.loads(json.dumps([messages, tools]))
            messages = mark(messages) if mark else messages
            tools = mark(tools) if mark and tools else tools
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(f"Chat messages must be plain data: {_sentence(error)}.") from error
        given = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": True,
            **special_tokens,
        }
        try:
            return self._template.render(given)
        except Exception as error:  # a template can raise anything
            raise UserError(f"The chat template fails on this conversation: {_sentence(error)}.") from error


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:300].rstrip(".")
