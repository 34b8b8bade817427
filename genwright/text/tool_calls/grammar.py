"""tool_grammar: a Lark grammar of answers whose tool calls are right."""

import re
from typing import Any

from genwright.arguments import short
from genwright.errors import UserError
from genwright.text.tool_calls.lark import ANY_TEXT, json_of, marker, quoted, until
from genwright.text.tool_calls.styles import STYLES, Style, functions

_NOTHING = {"type": "object", "properties": {}}


def tool_grammar(tools: Any, choice: Any, style: str, parallel: bool = True) -> str:
    """The grammar of an answer in a style: `choice` is auto, required, or one function as OpenAI's API names it.

    With auto the answer is free until a call begins. `parallel` allows several calls, unless one function is named.
    """
    form, found = STYLES[style], functions(tools)
    if choice not in ("auto", "required"):
        found, parallel = [_named(choice, found)], False
    rules = _start(form, parallel) if choice == "auto" else [f"start: {_calls(form, form.begin, parallel)}"]
    rules.append("call: " + " | ".join(f"call_{number}" for number in range(len(found))))
    for number, function in enumerate(found):
        begin = _text(form, form.name + function["name"] + form.arguments)
        rules.append(f"call_{number}: {begin} args_{number} {_text(form, form.end)}")
        schema = arguments_schema(function)
        rules += _pythonic(number, schema) if style == "pythonic" else [f"args_{number}: {json_of(schema)}"]
    return "\n".join(rules) + "\n"


def arguments_schema(function: dict[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments; without a word on further ones there are none."""
    return {"additionalProperties": False, **(function.get("parameters") or _NOTHING)}


def _start(form: Style, parallel: bool) -> list[str]:
    """Rules of an answer that is free until a call begins."""
    if not form.trigger:  # only the beginning of an answer can be a call
        first = re.escape((form.begin + form.name)[0])
        return [f"start: {_calls(form, form.begin, parallel)} | free", rf"free: /([ \n]*[^ \n{first}](.|\n)*)?/"]
    again = parallel and form.trigger not in form.separator  # else each call has a head of its own
    block = f"head {_calls(form, form.begin.removeprefix(form.trigger), again)}"
    start = f"start: ({block})* free" if parallel else f"start: {block} | free"
    return [start, f"head{until(form.trigger)}", f"free: {ANY_TEXT}"]


def _calls(form: Style, begin: str, several: bool) -> str:
    more = f"({_text(form, form.separator)} call)*" if several else ""
    return f"{_text(form, begin)} call {more} {_text(form, form.close)}"


def _text(form: Style, text: str) -> str:
    """In a rule: text of which some parts are markers."""
    parts = re.split(f"({'|'.join(map(re.escape, form.markers))})", text)
    return " ".join(marker(part) if part in form.markers else quoted(part) for part in parts if part)


def _named(choice: Any, found: list[dict[str, Any]]) -> dict[str, Any]:
    """The function that must be called, by its name or as OpenAI's or Anthropic's API writes it."""
    name = choice
    if isinstance(choice, dict):
        name = choice.get("name") or (choice.get("function") or {}).get("name")
    for function in found:
        if function["name"] == name:
            return function
    names = ", ".join(function["name"] for function in found)
    raise UserError(f"tool_choice must be auto, none, required or one of the functions {names}, not {short(choice)}.")


def _pythonic(number: int, schema: dict[str, Any]) -> list[str]:
    """Rules of Python's keyword arguments: those that are required, then any of the others in order."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    rules, values = [], {}
    for place, (name, part) in enumerate(properties.items()):
        values[name] = f"value_{number}_{place}"
        kind = part.get("type") if isinstance(part, dict) else None
        value = {"boolean": '"True" | "False"', "null": '"None"'}.get(str(kind)) or json_of({**shared, **part})
        rules += [
            f"{values[name]}: {quoted(f'{name}=')} value_of_{number}_{place}",
            f"value_of_{number}_{place}: {value}",
        ]
    needed = [values[name] for name in properties if name in required]
    others = [values[name] for name in properties if name not in required]
    for place, rule in enumerate(others):
        rules.append(f"more_{number}_{place}: ({quoted(', ')} {rule})? more_{number}_{place + 1}")
    rules.append(f"more_{number}_{len(others)}:")
    if needed:
        comma = f" {quoted(', ')} "
        return [f"args_{number}: {comma.join(needed)} more_{number}_0", *rules]
    firsts = [f"{rule} more_{number}_{place + 1}" for place, rule in enumerate(others)]
    return [f"args_{number}: {' | '.join([*firsts, quoted('')])}", *rules]
