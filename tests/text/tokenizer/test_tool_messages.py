"""Whatever a chat template leaves out of a chat with tools, the model reads it as text."""

import json

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from genwright.errors import UserError
from genwright.text.tokenizer.tokenizer import Tokenizer
from genwright.text.tokenizer.tool_messages import render_with_tools
from genwright.text.tool_calls import STYLES, parse_tool_calls, written_calls

CALLS = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"  # noqa: RUF001 (DeepSeek's bar)
TURN = "{{ '[' + m.role + ']' + m.content }}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('No system role') }}{% endif %}"
ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}" + TURN + "{% endfor %}"
)
TEMPLATES = {
    "plain": "{% for m in messages %}" + TURN + "{% endfor %}",
    "drops results": "{% for m in messages %}{% if m.role in ('system', 'user', 'assistant') %}"
    + TURN
    + "{% endif %}{% endfor %}",
    "alternates": NO_SYSTEM + ALTERNATING,
    # DeepSeek's: calls have a place only if there is no content, results have one, and tools have none
    "deepseek": "{% for m in messages %}{% if m.content is none %}" + CALLS + "{{ m.tool_calls }}```json"
    "{% else %}" + TURN + "{% endif %}{% endfor %}",
    "deepseek-v3.1": "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}"
    + CALLS
    + "{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}",
    "one call": "{{ tools | tojson }}<tool_call>{% for m in messages %}" + TURN + "{% if m.tool_calls | length > 1 %}"
    "{{ raise_exception('one call at a time') }}{% endif %}{{ (m.tool_calls or '') | tojson }}{% endfor %}",
    "mistral": "{{ tools | tojson }}[TOOL_CALLS]{% for m in messages %}{% for c in [m] + (m.tool_calls or []) %}"
    "{% set id = c.tool_call_id or c.id %}{{ id }}"
    "{% if id and id | length != 9 %}{{ raise_exception('length 9') }}{% endif %}{% endfor %}{{ m.content }}"
    "{{ (m.tool_calls or '') | tojson }}{% endfor %}",
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("weather", "clock")
]
USER = {"role": "user", "content": "How warm is it?"}


def call(number: int, name: str, city: str) -> dict:
    return {"id": f"call_{number:024}", "type": "function", "function": {"name": name, "arguments": {"city": city}}}


HISTORY = [
    USER,
    {"role": "assistant", "content": "", "tool_calls": [call(1, "weather", "Rome"), call(2, "clock", "Oslo")]},
    {"role": "tool", "tool_call_id": call(1, "", "")["id"], "content": "20 degrees"},
    {"role": "tool", "tool_call_id": call(2, "", "")["id"], "content": "noon"},
    {"role": "user", "content": "And now?"},
]


def tokenizer_of(template: str) -> Tokenizer:
    backend = tokenizers.Tokenizer(
        models.BPE({each: i for i, each in enumerate(pre_tokenizers.ByteLevel.alphabet())}, [])
    )
    return Tokenizer(backend, {"chat_template": template})


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_nothing_is_left_out(template: str) -> None:
    tokenizer = tokenizer_of(template)
    asked = render_with_tools(tokenizer, [USER], TOOLS, mark=False)
    assert '"weather"' in asked and '"clock"' in asked and "How warm" in asked
    for tools in (TOOLS, None):
        text = render_with_tools(tokenizer, HISTORY, tools, mark=False)
        places = [text.rindex(word) for word in ("How warm", "Rome", "Oslo", "20 degrees", "noon", "And now?")]
        assert places == sorted(places) and ('"parameters"' in text) == bool(tools)


def test_what_a_template_writes_is_left_to_it() -> None:
    source = (
        "{{ tools | tojson }}<tool_call>{% for m in messages %}"
        + TURN
        + "{{ (m.tool_calls or '') | tojson }}{% endfor %}"
    )
    tokenizer = tokenizer_of(source)
    assert render_with_tools(tokenizer, HISTORY, TOOLS, mark=False) == tokenizer.render(HISTORY, tools=TOOLS)
    assert render_with_tools(tokenizer, [USER], None, mark=True) == tokenizer.render([USER], mark=True)


def test_results_are_one_message_of_the_user() -> None:
    text = render_with_tools(tokenizer_of(TEMPLATES["alternates"]), HISTORY, None, mark=False)
    results = "\n".join(f"<tool_response>\n{result}\n</tool_response>" for result in ("20 degrees", "noon"))
    assert text.endswith(f"[user]{results}\nAnd now?")


def test_the_tools_are_described_as_the_template_writes_calls() -> None:
    text = render_with_tools(tokenizer_of(TEMPLATES["deepseek-v3.1"]), [USER], TOOLS, mark=False)
    assert CALLS + "NAME" in text and "<tool_call>" not in text


@pytest.mark.parametrize("malformed", ["y", {"function": "y"}, {"function": {"name": "f"}}])
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_calls_of_another_form_are_left_to_the_template(template: str, malformed: object) -> None:
    calls = [call(1, "weather", "Rome"), malformed]
    chat = [USER, {"role": "assistant", "content": "", "tool_calls": calls}]
    try:
        text = render_with_tools(tokenizer_of(template), chat, TOOLS, mark=False)
    except UserError:  # the template's
        return
    assert "How warm" in text


def test_an_error_of_the_conversation_stays_one() -> None:
    tokenizer = tokenizer_of(TEMPLATES["alternates"])
    for messages in ([USER, USER], [*HISTORY, USER], [{"role": "system", "content": "Hi"}, USER]):
        with pytest.raises(UserError, match=r"(roles must alternate|No system role)\.$"):
            render_with_tools(tokenizer, messages, TOOLS, mark=False)


@pytest.mark.parametrize("style", STYLES)
def test_written_calls_are_read_again(style: str) -> None:
    made = [
        {"name": "weather", "arguments": {"city": "Rom\"a'", "days": [1, None]}},
        {"name": "clock", "arguments": {}},
    ]
    tools = [{"function": {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}}}, *TOOLS[1:]]
    text, calls = parse_tool_calls(written_calls(made, style), style, tools)
    assert text == "" and [each.name for each in calls] == ["weather", "clock"]
    assert [json.loads(each.arguments) for each in calls] == [each["arguments"] for each in made]
