"""Tools and calls as texts, for a chat template that has no place for them."""

import json
from typing import Any

from genwright.text.tool_calls.styles import DEFAULT, STYLES

_DESCRIPTION = """You may call one or more functions to answer. The functions are:
<tools>
{tools}
</tools>
For each call, write {how}
{form}"""
# Of the styles that do not write a JSON object.
_PLACEHOLDERS = {"pythonic": "KEY=VALUE, ...", "qwen3-coder": "<parameter=KEY>\nVALUE\n</parameter>\n"}


def described_tools(tools: list[dict[str, Any]], style: str) -> str:
    """What tells a model its tools, and how to call them."""
    how = "the function's name and arguments in this form:"
    if style == DEFAULT:
        how = "a JSON object with the function's name and arguments within tags:"
    form = _written([("NAME", _PLACEHOLDERS.get(style, "{...}"))], style)
    return _DESCRIPTION.format(tools="\n".join(json.dumps(t, ensure_ascii=False) for t in tools), how=how, form=form)


def written_calls(functions: list[dict[str, Any]], style: str) -> str:
    """Calls as a model of this style writes them."""
    return _written([(each["name"], _arguments(each["arguments"], style)) for each in functions], style)


def _written(calls: list[tuple[str, str]], style: str) -> str:
    form = STYLES[style]
    texts = [f"{form.name}{name}{form.arguments}{arguments}{form.end}" for name, arguments in calls]
    return form.begin + form.separator.join(texts) + form.close


def _arguments(given: Any, style: str) -> str:
    if not isinstance(given, dict):
        return str(given)
    if style == "pythonic":
        return ", ".join(f"{key}={value!r}" for key, value in given.items())
    if style == "qwen3-coder":
        texts = {key: value if isinstance(value, str) else _json(value) for key, value in given.items()}
        return "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
    return _json(given)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
