"""tool_grammar: a Lark grammar of answers whose tool calls are right."""

import re
from typing import Any

from genwright.arguments import short
from genwright.errors import UserError
from genwright.text.tool_calls.lark import ANY_TEXT, json_of, marker, quoted, until
from genwright.text.tool_calls.parameters import (
    JOINT,
    is_any,
    parameter_schemas,
    plain_choices,
    required_parameters,
)
from genwright.text.tool_calls.styles import STYLES, Style, functions

_PYTHON_WORDS = (("boolean", '"True" | "False"'), ("null", '"None"'))


def tool_grammar(tools: Any, choice: Any, style: str, parallel: bool = True) -> str:
    """The grammar of an answer in a style: `choice` is auto, required, or one function as OpenAI's API names it.

    With auto the answer is free until a call begins. `parallel` allows several calls, unless one function is named.
    """
    form, found = STYLES[style], chosen_functions(tools, choice)
    parallel = parallel and choice in ("auto", "required")
    rules = _start(form, parallel) if choice == "auto" else [f"start: {_calls(form, form.begin, parallel)}"]
    rules.append("call: " + " | ".join(f"call_{number}" for number in range(len(found))))
    for number, function in enumerate(found):
        begin = _text(form, form.name + function["name"] + form.arguments)
        rules.append(f"call_{number}: {begin} args_{number} {_text(form, form.end)}")
        rules += _ARGUMENTS.get(style, _json)(number, function)
    return "\n".join(rules) + "\n"


def chosen_functions(tools: Any, choice: Any) -> list[dict[str, Any]]:
    """The functions that an answer may call: all of them, or the one that `choice` names."""
    found = functions(tools)
    return found if choice in ("auto", "required") else [_named(choice, found)]


def arguments_schema(function: dict[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments; if it lists them, there are no others unless it says so."""
    schema = {"type": "object", **(function.get("parameters") or {"properties": {}})}
    return schema if any(key in schema for key in JOINT) else {"additionalProperties": False, **schema}


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


def _json(number: int, function: dict[str, Any]) -> list[str]:
    """The rule of arguments that are one JSON object."""
    return [f"args_{number}: {json_of(arguments_schema(function))}"]


def _pythonic(number: int, function: dict[str, Any]) -> list[str]:
    """Rules of Python's keyword arguments: those that are required, then any of the others in order."""
    required = required_parameters(function)
    rules, needed, others = list[str](), list[str](), list[str]()
    for place, (name, schema) in enumerate(parameter_schemas(function).items()):
        value = next((words for kind, words in _PYTHON_WORDS if is_any(kind, schema)), json_of(schema))
        rule = f"argument_{number}_{place}"
        rules += [f"{rule}: {quoted(f'{name}=')} value_{number}_{place}", f"value_{number}_{place}: {value}"]
        (needed if name in required else others).append(rule)
    for place, rule in enumerate(others):
        rules.append(f"more_{number}_{place}: ({quoted(', ')} {rule})? more_{number}_{place + 1}")
    rules.append(f"more_{number}_{len(others)}:")
    if needed:
        comma = f" {quoted(', ')} "
        return [f"args_{number}: {comma.join(needed)} more_{number}_0", *rules]
    firsts = [f"{rule} more_{number}_{place + 1}" for place, rule in enumerate(others)]
    return [f"args_{number}: {' | '.join([*firsts, quoted('')])}", *rules]


def _xml(number: int, function: dict[str, Any]) -> list[str]:
    """Rules of parameters in tags, in the order of the schema; a text has no quotes."""
    end, required = "\n</parameter>", required_parameters(function)
    rules, parts = [f"text_{number}[suffix={quoted(end)}]: {ANY_TEXT}"], []
    for place, (name, schema) in enumerate(parameter_schemas(function).items()):
        if is_any("string", schema):
            value = f"text_{number}"
        elif texts := plain_choices(schema):
            value = f"({' | '.join(map(quoted, texts))}) {quoted(end)}"
        else:
            value = f"value_{number}_{place} {quoted(end)}"
            rules.append(f"value_{number}_{place}: {json_of(schema)}")
        rules.append(f"argument_{number}_{place}: {quoted(f'<parameter={name}>{chr(10)}')} {value} {quoted(chr(10))}")
        parts.append(f"argument_{number}_{place}{'' if name in required else '?'}")
    return [f"args_{number}: {' '.join(parts) or quoted('')}", *rules]


_ARGUMENTS = {"pythonic": _pythonic, "qwen3-coder": _xml}
