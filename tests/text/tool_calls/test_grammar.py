"""Grammars of tool calls accept right calls in every style, refuse wrong ones, and leave other answers free."""

import json

import pytest
from text.engine.json_writings import Checker

from genwright.errors import UserError
from genwright.text.engine.grammar import Grammar
from genwright.text.tool_calls import STYLES, parse_tool_calls, tool_grammar
from genwright.text.tool_calls.lark import resolve_markers

NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "c": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
}
PARAMETERS = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"}},
        "required": ["city"],
    },
    "now": None,
    "tree": {
        "$defs": {"n": NODE},
        "type": "object",
        "properties": {"root": {"$ref": "#/$defs/n"}},
        "required": ["root"],
    },
    "any": {
        "type": "object",
        "properties": {
            "p": {"type": "integer"},
            "q": {"type": "null"},
            "r": {"enum": ["s", "t"]},
            "u": {"type": "boolean", "const": True},
        },
    },
}
TOOLS = [
    {"type": "function", "function": {"name": name, **({"parameters": each} if each else {})}}
    for name, each in PARAMETERS.items()
]
RIGHT = [
    [("weather", {"city": "Rome"})],
    [("weather", {"city": 'a "b" [', "days": 3, "metric": True}), ("now", {})],
    [("tree", {"root": {"v": 1, "c": [{"v": 2}, {}]}})],
    [("any", {}), ("any", {"q": None}), ("any", {"p": 1, "r": "t"}), ("any", {"u": True})],
]
WRONG = [
    [("weather", {"days": 3})],
    [("weather", {"city": "x", "days": "3"})],
    [("nothing", {})],
    [("now", {"a": 1})],
    [("any", {"r": "u"})],
    [("any", {"u": False})],
]


def written(style: str, calls: list) -> str:
    form, parts = STYLES[style], []
    for name, arguments in calls:
        text = json.dumps(arguments)
        if style == "pythonic":
            values = {key: json.dumps(value) for key, value in arguments.items()}
            literals = {
                key: {"true": "True", "null": "None"}.get(text, text) if key != "u" else text
                for key, text in values.items()
            }
            text = ", ".join(f"{key}={literal}" for key, literal in literals.items())
        if style == "qwen3-coder":
            texts = ("city", "r")
            values = {key: value if key in texts else json.dumps(value) for key, value in arguments.items()}
            text = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
        parts.append(form.name + name + form.arguments + text + form.end)
    return form.begin + form.separator.join(parts) + form.close


def compiled(checker: Checker, grammar: str) -> Grammar:
    return checker.compile(grammar=resolve_markers(grammar, checker.tokenizer.token_id))


class Case:
    """A style, in a vocabulary that has its markers as tokens, or has none of them."""

    def __init__(self, style: str, special: bool):
        self.style, self.checker = style, Checker(*(STYLES[style].markers if special else ()))

    def grammar(self, choice, parallel: bool = True) -> Grammar:
        return compiled(self.checker, tool_grammar(TOOLS, choice, self.style, parallel))

    def accepts(self, grammar: Grammar, text: str) -> bool:
        return self.checker.accepts_text(grammar, text)


@pytest.fixture(params=[(style, special) for style in STYLES for special in (False, True)], ids=str)
def case(request) -> Case:
    return Case(*request.param)


def test_required_calls(case):
    grammar = case.grammar("required")
    assert all(case.accepts(grammar, written(case.style, calls)) for calls in RIGHT)
    assert not any(case.accepts(grammar, written(case.style, calls)) for calls in WRONG)
    assert not case.accepts(grammar, "Hello") and not case.accepts(grammar, "")


def test_calls_by_choice_are_right_and_other_answers_are_free(case):
    grammar, trigger = case.grammar("auto"), STYLES[case.style].trigger
    free = ["", "Hello.\nI am (not) <a> tool.", " x [1] {2}"]
    assert all(case.accepts(grammar, text) for text in free)
    assert all(case.accepts(grammar, written(case.style, calls)) for calls in RIGHT)
    assert not any(case.accepts(grammar, written(case.style, calls)) for calls in WRONG)
    if trigger:
        assert case.accepts(grammar, "I look < it up.\n" + written(case.style, RIGHT[1]))
        assert not any(case.accepts(grammar, "I look it up: " + written(case.style, calls)) for calls in WRONG)


def test_one_call(case):
    for grammar in (case.grammar("auto", parallel=False), case.grammar("required", parallel=False)):
        assert case.accepts(grammar, written(case.style, RIGHT[0]))
        assert not case.accepts(grammar, written(case.style, RIGHT[1]))
    for choice in ("now", {"type": "function", "function": {"name": "now"}}, {"type": "tool", "name": "now"}):
        grammar = case.grammar(choice)
        assert case.accepts(grammar, written(case.style, [("now", {})]))
        assert not case.accepts(grammar, written(case.style, RIGHT[0]))


def test_what_the_grammar_accepts_is_parsed(case):
    for calls in RIGHT:
        text, found = parse_tool_calls(written(case.style, calls), case.style, TOOLS)
        assert not text and [(call.name, json.loads(call.arguments)) for call in found] == calls


def test_texts_in_tags():
    """Any text is a value of a plain string; other strings are JSON, because they have a form to follow."""
    properties = {
        "code": {"type": "string", "title": "Code"},
        "zip": {"type": "string", "pattern": "^[0-9]{2}$"},
        "note": {"type": ["string", "null"]},
        "all": True,
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}]
    checker = Checker()
    grammar = compiled(checker, tool_grammar(tools, "required", "qwen3-coder"))
    accepted = [
        ("code", 'x "\\" <b></parameter>\n</parameter {', 'x "\\" <b></parameter>\n</parameter {'),
        ("code", "", ""),
        ("zip", '"01"', "01"),
        ("note", '"a\\n"', "a\n"),
        ("note", "null", None),
        ("all", "[1]", [1]),
    ]
    for key, text, value in accepted:
        answer = f"<tool_call>\n<function=f>\n<parameter={key}>\n{text}\n</parameter>\n</function>\n</tool_call>"
        assert checker.accepts_text(grammar, answer)
        _, calls = parse_tool_calls(answer, "qwen3-coder", tools)
        assert json.loads(calls[0].arguments) == {key: value}
    for key, text in [("zip", "01"), ("zip", '"012"'), ("note", "a"), ("all", "a"), ("none", "1")]:
        answer = f"<tool_call>\n<function=f>\n<parameter={key}>\n{text}\n</parameter>\n</function>\n</tool_call>"
        assert not checker.accepts_text(grammar, answer)


@pytest.mark.parametrize("style", ["pythonic", "qwen3-coder"])
@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"anyOf": [{"required": ["a"]}]}, "The keyword anyOf of the parameters of f is not supported"),
        ({"properties": [1]}, "must be an object of schemas"),
        ({"properties": {"a": 3}}, "must be an object of schemas"),
        ({"properties": {"a>b": {}}}, "The parameter name 'a>b' of f is not supported"),
        ({"properties": {}, "required": ["a"]}, "'a' of f is required, but is not one of its properties"),
    ],
)
def test_parameters_that_cannot_be_written_one_by_one(style, parameters, words):
    with pytest.raises(UserError, match=f"^tools: .*{words}"):
        tool_grammar([{"type": "function", "function": {"name": "f", "parameters": parameters}}], "auto", style)


@pytest.mark.parametrize(
    ("tools", "choice", "words"),
    [
        (TOOLS, "later", "tool_choice must be auto, none, required or one of the functions weather, now"),
        (TOOLS, {"type": "function"}, "tool_choice must be"),
        ([], "auto", "tools must be a list"),
        ([{"name": "f"}], "auto", r"tools\[0\] must be"),
        ([{"type": "function", "function": {"name": 'a" b'}}], "auto", "letters, digits"),
        (
            [{"type": "function", "function": {"name": "f", "parameters": 3}}],
            "auto",
            "must be the JSON Schema of an object",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence(tools, choice, words):
    with pytest.raises(UserError, match=words):
        tool_grammar(tools, choice, "hermes")
