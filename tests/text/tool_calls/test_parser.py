"""Tool calls are found as every family writes them, however the text is cut, and nothing of the text is lost."""

import json
import random

import pytest

from genwright.text.tool_calls import STYLES, Delta, ToolParser, parse_tool_calls, written_calls

BAR = "\uff5c"
CALLS, CALL, SEP, END, CALLS_END = STYLES["deepseek"].markers
A = '{"a": "x}\\" <tool_call>", "b": [1, {"c": null}]}'
# Style: answers, each with its text and its calls.
ANSWERS = {
    "hermes": [
        (f'Sure.\n<tool_call>\n{{"name": "f", "arguments": {A}}}\n</tool_call>', "Sure.", [("f", A)]),
        (
            '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n'
            '<tool_call>\n{"arguments": {"a": 1}, "name": "g"}\n</tool_call>',
            "",
            [("f", "{}"), ("g", '{"a": 1}')],
        ),
        (
            '<tool_call>[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]</tool_call> so ',
            "so",
            [("f", '{"a": 1}'), ("g", "{}")],
        ),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
        ('<tool_call>{"name": "f", "arguments": {}}\n</tool_', "", [("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": {}} </tool_x', "</tool_x", [("f", "{}")]),
        ("a <tool_call> b, <tool_call>{]}", "a <tool_call> b, <tool_call>{]}", []),
        (" 1 < 2 <tool", " 1 < 2 <tool", []),
        ("  \n", "  \n", []),
    ],
    "qwen3-coder": [
        (
            "Well.\n<tool_call>\n<function=f>\n<parameter=a>\n3\n</parameter>\n<parameter=b>\n x\ny </p\n</parameter>\n"
            "</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
            "Well.",
            [("f", '{"a": 3, "b": " x\\ny </p"}'), ("g", "{}")],
        ),
        ("<tool_call><function=f><parameter=a>True</parameter></function></tool_call> k", "k", [("f", '{"a": true}')]),
        (
            "<tool_call>\n<function=f>\n<parameter=a>\n\n</parameter>\n<parameter=b>\n</parameter></function>",
            "",
            [("f", '{"a": "", "b": ""}')],
        ),
        ('<tool_call>{"name": "f"}', '<tool_call>{"name": "f"}', []),
        ("<function=f> <tool_call", "<function=f> <tool_call", []),
    ],
    "llama3": [
        (f'{{"name": "f", "parameters": {A}}}; {{"name": "g", "parameters": {{}}}}', "", [("f", A), ("g", "{}")]),
        ('<|python_tag|>{"type": "function", "name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
        ('{"type": "function", "function": {"name": "f", "parameters": {"x": 2}}}', "", [("f", '{"x": 2}')]),
        ('{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', []),
        ('Hi {"name": "f", "parameters": {}}', 'Hi {"name": "f", "parameters": {}}', []),
        ('{"name": "f", "parameters": {}} and more', "and more", [("f", "{}")]),
    ],
    "mistral": [
        (f'[TOOL_CALLS][{{"name": "f", "arguments": {A}, "id": "x"}}, {{"name": "g"}}]', "", [("f", A), ("g", "{}")]),
        ("Look: [TOOL_CALLS] [1]", "Look: [TOOL_CALLS] [1]", []),
    ],
    "mistral-args": [
        (f"[TOOL_CALLS]f[ARGS]{A}[TOOL_CALLS]g[CALL_ID]xyz[ARGS]{{}}", "", [("f", A), ("g", "{}")]),
        ('ok [TOOL_CALLS] f{"a": 1}', "ok", [("f", '{"a": 1}')]),
    ],
    "deepseek": [
        (
            f"Well{CALLS}{CALL}function{SEP}f\n```json\n{A}\n```{END}\n"
            f"{CALL}function{SEP}g\n```json\n{{}}\n```{END}{CALLS_END}",
            "Well",
            [("f", A), ("g", "{}")],
        ),
    ],
    "deepseek-v3.1": [(f"{CALLS}{CALL}f{SEP}{A}{END}{CALL}g{SEP}{{}}{END}{CALLS_END}", "", [("f", A), ("g", "{}")])],
    "pythonic": [
        (
            "[f(a=1, b=\"x, y)\", c=[True, null, (1, 2)]), g()]",
            "",
            [("f", '{"a": 1, "b": "x, y)", "c": [true, null, [1, 2]]}'), ("g", "{}")],
        ),
        (
            "<|python_start|>[f(a='it\\'s', b={'k': -1.5})]<|python_end|>",
            "",
            [("f", '{"a": "it\'s", "b": {"k": -1.5}}')],
        ),
        ("[1, 2]", "[1, 2]", []),
        ("Text [f()]", "Text [f()]", []),
        ("[a.b()] done", "done", [("a.b", "{}")]),
        ("[f(a=open('x'))]", "a=open('x'))]", [("f", "")]),
        ("[f(a={b'x'})]", "a={b'x'})]", [("f", "")]),
        ('[f(a="\\/")]', "", [("f", '{"a": "\\/"}')]),
    ],
}  # fmt: skip
CASES = [(style, *answer) for style, answers in ANSWERS.items() for answer in answers]


def gathered(deltas: list[Delta]) -> tuple[str, list[tuple[str, str]]]:
    names = [delta for delta in deltas if delta.kind == "name"]
    assert [delta.index for delta in names] == list(range(len(names)))
    assert len({delta.id for delta in names}) == len(names)
    arguments = ["" for _ in names]
    for delta in deltas:
        if delta.kind == "arguments":
            assert delta.id == names[delta.index].id
            arguments[delta.index] += delta.text
    text = "".join(delta.text for delta in deltas if delta.kind == "text")
    return text, [(delta.text, part) for delta, part in zip(names, arguments, strict=True)]


@pytest.mark.parametrize(("style", "answer", "text", "calls"), CASES)
def test_calls_and_text_however_the_answer_is_cut(style, answer, text, calls):
    said, found = parse_tool_calls(answer, style)
    assert (said, [(call.name, call.arguments) for call in found]) == (text, calls)
    rng = random.Random(len(answer))
    for size in (1, 2, 3, 7, None):
        parser, deltas, start = ToolParser(style), [], 0
        while start < len(answer):
            end = start + (size or rng.randint(1, 20))
            deltas += parser.feed(answer[start:end])
            start = end
        assert gathered(deltas + parser.finish()) == (text, calls)


def test_every_style_is_tried():
    assert set(ANSWERS) == set(STYLES)


def test_arguments_are_told_as_they_come():
    parser = ToolParser("hermes")
    assert [delta.text for delta in parser.feed('Ok. <tool_call>{"name": "f", "argum')] == ["Ok."]
    first = parser.feed('ents": {"city": "Ro')
    assert [(delta.kind, delta.text) for delta in first] == [("name", "f"), ("arguments", '{"city": "Ro')]
    assert [(delta.kind, delta.text) for delta in parser.feed('me", "d')] == [("arguments", 'me", "d')]
    assert parser.feed('ays": 3}}') and not parser.feed("\n</tool_call>\n") and not parser.finish()


def test_texts_in_tags_are_told_as_they_come():
    tools = [{"function": {"name": "f", "parameters": {"properties": {"code": {"type": "string"}}}}}]
    parser = ToolParser("qwen3-coder", tools)
    parser.feed("<tool_call>\n<function=f>\n<parameter=code>")
    pieces = ["\na", " <b", "\n", "</par", "k\n</parameter>", "\n</function>", "\n</tool_call>"]
    told = ["".join(delta.text for delta in parser.feed(piece)) for piece in pieces]
    assert told == ['"a', " <b", "", "", '\\n</park"', "}", ""] and not parser.finish()


def test_ids_are_those_of_the_text_or_new():
    _, calls = parse_tool_calls("[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}[TOOL_CALLS]g[ARGS]{}", "mistral-args")
    assert calls[0].id == "abc" and calls[1].id.startswith("call_")


@pytest.mark.parametrize("style", STYLES)
def test_no_text_breaks_the_parser(style):
    """Random pieces of calls: nothing raises, and an answer without a call is text."""
    rng = random.Random(1)
    pieces = [
        *STYLES[style].markers,
        '{"name": "',
        'f", "arguments": ',
        '{"a": 1}',
        "}",
        "[",
        "]",
        "f(",
        "a=1",
        ")",
        ",",
    ]
    pieces += ['"', "\\", "\n", " ", "x", "```json\n", '"parameters": ', "(" * 300, "{" * 300]
    for _ in range(500):
        answer = "".join(rng.choices(pieces, k=rng.randint(1, 12)))
        said, calls = parse_tool_calls(answer, style)
        if style.startswith("deepseek"):  # its outer markers are no text
            answer, said = (text.replace(CALLS, "").replace(CALLS_END, "").strip() for text in (answer, said))
        assert calls or said == answer
        assert all(call.name for call in calls)


@pytest.mark.parametrize("style", STYLES)
def test_a_call_that_is_cut_off_is_text(style):
    """Wherever an answer ends, each call that is told is whole, and what is left of the last one is text as written."""
    made = [{"name": name, "arguments": {"city": "Rome", "days": 12}} for name in ("f", "g")]
    tools = [{"function": {"name": "f", "parameters": {"properties": {"city": {"type": "string"}}}}}]
    answer = written_calls(made, style)
    assert [json.loads(call.arguments) for call in parse_tool_calls(answer, style)[1]] == [made[0]["arguments"]] * 2
    for end in range(len(answer)):
        parser = ToolParser(style, tools)
        said, calls = parser.whole(answer[:end])
        assert all(json.loads(call.arguments) == made[0]["arguments"] for call in calls)
        if not calls and not style.startswith("deepseek"):  # whose outer marker is no text
            assert said == answer[:end]
        streamed = ToolParser(style, tools)
        text = "".join(delta.text for delta in streamed.feed(answer[:end]) + streamed.finish() if delta.kind == "text")
        assert parser.cut == streamed.cut and text + parser.cut == said
        assert answer[:end].endswith(parser.cut) and (not parser.cut or not text.strip())


def test_deep_arguments():
    deep = '{"a": ' * 5000 + "1" + "}" * 5000
    _, calls = parse_tool_calls(f'<tool_call>{{"name": "f", "arguments": {deep}}}</tool_call>', "hermes")
    assert calls[0].arguments == deep
