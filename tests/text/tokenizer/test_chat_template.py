"""Chat templates against transformers' own rendering, and hostile ones against the limits."""

import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from genwright.errors import UserError
from genwright.text.tokenizer import template_sandbox
from genwright.text.tokenizer.chat_template import ChatTemplate, find_template, template_names

NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
USER = [{"role": "user", "content": " Hi there \n"}]
TALK = [{"role": "system", "content": "Be brief."}, *USER]
TALK += [{"role": "assistant", "content": "Yes? <think>hm</think> ok"}, {"role": "user", "content": "1 < 2 & 'é'"}]

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou "
    "are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + "
    "message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML = """
{%- for message in messages %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content | trim ~ '<|im_end|>\\n' -}}
{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
LLAMA3 = """
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{% endif %}
{{- system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {%- generation %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
        {%- endgeneration %}
    {%- elif 'tool_calls' in message %}
        {{- message.tool_calls | tojson(indent=2) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
# What templates in use do beyond that: macros, namespaces, reversed loops, break, string methods, filters.
FEATURES = """
{%- macro turn(role, content='none') -%}[{{ role|upper }}: {{ caller() if caller else content }}]{%- endmacro %}
{%- set ns = namespace(last=0, seen=[], text='') %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == "user" and message.content is string %}{%- set ns.last = index %}{%- break %}{%- endif %}
{%- endfor %}
{%- for message in messages if message.role != 'system' %}
    {%- set content = message['content'] %}
    {%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
    {{- turn(message.role, content) }}{{ loop.index0 }}/{{ loop.length }}{{ ',' if not loop.last else '.' }}
    {%- set ns.seen = ns.seen + [message.role] %}
    {%- set ns.text = ns.text ~ message.role ~ loop.index %}
    {%- if loop.previtem is defined and loop.changed(message.role) %}!{% endif %}
{%- endfor %}
{% call turn('x') %}{{ ns.last }}{% endcall %}
{% set block %}{{ ns.seen | join('-') }}{% endset %}{{ block }} {{ ns.text }}
{%- for key, value in messages[0].items() %} {{ key }}={{ value | tojson }}{% endfor %}
{%- for message in messages %}
    {%- set own = namespace() %}{{ message.role.replace('s', 'z') + '{}'.format(1) }}
{%- endfor %}
{{ none | selectattr('type') | list }} {{ none | map('upper') | list }}
{{ messages | map(attribute='role') | unique | list }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{{ 'a,b'.replace(',', ';') }} {{ '{}-{:>4}'.format(1, 'x') }} {{ '%s %03d' % ('a', 7) }} {{ '%s' | format('é') }}
{{ ('x' * 3) + 'y' }} {{ 2 ** 10 }} {{ 7 // 2 }} {{ 'hello world' | title | replace('World', 'all') | indent(2, true) }}
{{ ', '.join(messages | map(attribute='role')) }} {{ absent }} {{ absent.deeper if absent else 'no' }}
{{ {'b': [1, none, true], 'a': '<é>'} | tojson }} {{ (1, 2) | last }} {{ dict(a=1) }} {{ [3, 1] | sort | first }}
"""


@pytest.mark.parametrize("messages", [USER, TALK], ids=["user", "talk"])
@pytest.mark.parametrize("source", [SMOLLM2, CHATML, LLAMA3, FEATURES], ids=["smollm2", "chatml", "llama3", "features"])
def test_renders_as_transformers(source: str, messages: list[dict[str, Any]]) -> None:
    (expected,), _ = render_jinja_template([messages], chat_template=source, add_generation_prompt=True, **NAMES)
    template = ChatTemplate(source)
    assert expected and template.render(messages, NAMES) == expected
    assert template.render(messages, NAMES) == expected  # nothing is left over from the first time


def test_tool_calls_render_as_transformers() -> None:
    calls = [*USER, {"role": "assistant", "tool_calls": [{"name": "add", "arguments": {"a": [1, 2.5], "b": "é"}}]}]
    (expected,), _ = render_jinja_template([calls], chat_template=LLAMA3, add_generation_prompt=True, **NAMES)
    assert '"arguments": {\n' in expected and ChatTemplate(LLAMA3).render(calls, NAMES) == expected


def test_llama2() -> None:
    template = ChatTemplate(find_template("llama-2"))
    assert template.render(USER, NAMES) == "<s>[INST] Hi there [/INST]"
    assert template.render(TALK, NAMES) == (
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n Hi there [/INST] Yes? <think>hm</think> ok </s>"
        "<s>[INST] 1 < 2 & 'é' [/INST]"
    )
    assert template.render(USER, {}) == "[INST] Hi there [/INST]"
    for wrong in (USER + USER, TALK[:1] + TALK[2:], [{"role": "tool", "content": ""}]):
        with pytest.raises(UserError, match=r"roles must alternate user, assistant, user, \.\.\.$|alternate"):
            template.render(wrong, NAMES)


def test_named_templates() -> None:
    turns = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "A"},
    ]
    turns.append({"role": "user", "content": "V"})
    spelled = {name: ChatTemplate(find_template(name)).render(turns, NAMES) for name in template_names()}
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    assert spelled == {
        "chatml": "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in turns)
        + "<|im_start|>assistant\n",
        "llama-2": "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A </s><s>[INST] V [/INST]",
        "llama-3": "<s>"
        + "".join(head.format(turn["role"]) + turn["content"] + "<|eot_id|>" for turn in turns)
        + head.format("assistant"),
        "mistral": "<s>[INST] S\n\nU [/INST] A</s>[INST] V [/INST]",
    }


def test_a_template_is_chosen_by_name_or_file(tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text("{{ messages[0].content }}!")
    assert find_template(str(tmp_path / "own.jinja")) == "{{ messages[0].content }}!"
    for wrong in ("lama-2", str(tmp_path), "../llama-2"):
        with pytest.raises(UserError, match=r"There is no chat template .*; pass chatml, llama-2, llama-3, mistral or"):
            find_template(wrong)


LONG = "{% set s = 'a' * 10**6 %}"
GROWING = {
    "text times number": "{{ 'a' * 10**10 }}",
    "number times list": "{{ 10**10 * [1] }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "squares": "{% set n = namespace(x=10) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "doubling +": "{% set n = namespace(s='a') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "doubling ~": "{% set n = namespace(s='a') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "nested namespaces": "{% set n = namespace() %}{% for i in range(99) %}{% set n.a = n %}{% endfor %}{{ n }}",
    "%": "{{ '%0999999999d' % 1 }}",
    "% of a value": "{{ '%*d' % (10**9, 1) }}",
    "% with a name": "{{ '%(a%b)99999d' % {'a%b': 1} }}",
    "format filter": "{{ '%999999999s' | format(1) }}",
    "format": "{{ '{:>999999999}'.format(1) }}",
    "format of a value": "{{ '{:{w}}'.format(1, w=10**9) }}",
    "format with an index": "{{ '{0[}]:>99999}'.format({'}': 1}) }}",
    "format often": "{{ ('{0}' * 10**5).format('a' * 10**5) }}",
    "format by item": "{{ '{:>999999999}'['format'](1) }}",
    "join": "{{ range(10**5) | join('a' * 10**5) }}",
    "join method": "{{ ('a' * 10**5).join(range(10**5) | map('string')) }}",
    "replace": "{{ ('a' * 10**6) | replace('a', 'b' * 10**6) }}",
    "replace method": "{{ ('a' * 10**6).replace('', 'b' * 10**6) }}",
    "indent": "{{ ('\n' * 10**5) | indent(10**6, blank=true) }}",
    "tojson": "{{ [[1]] | tojson(indent=10**9) }}",
    "macro": LONG + "{% macro m() %}{% for i in range(10**5) %}{{ s }}{% endfor %}{% endmacro %}{{ m() | length }}",
    "block": LONG + "{% set t %}{% for i in range(10**5) %}{{ s }}{% endfor %}{% endset %}",
    "output": LONG + "{% for i in range(10**5) %}{{ s }}{% endfor %}",
    "many": "".join(f"{{% set s{i} = 'a' * 4000000 %}}" for i in range(60)),
    "text": "{{ messages[0].content }}" * 50,
    "range": "{{ range(10**9) | list }}",
    "to_bytes": "{{ (5).to_bytes(10**9, 'big') }}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "center": "{{ 'a' | center(10**9) }}",
    "source": "a" * 10**6,
}
NESTED = {  # small to hold, endless to write out or to compare
    "list": "{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
    "tuple": "{% set n = namespace(s=1) %}{% for i in range(99) %}{% set n.s = (n.s, n.s) %}{% endfor %}{{ n.s ~ '' }}",
    "dict": "{% set n = namespace(s=1) %}{% for i in range(99) %}{% set n.s = {1: n.s, 2: n.s} %}{% endfor %}{{ n.s }}",
}
ENDLESS = {
    "loops": "{% for i in range(10**5) %}{% for j in range(10**5) %}{% endfor %}{% endfor %}",
    "text": "{% for a in 'a' * 10**6 %}{% for b in 'b' * 10**6 %}{% endfor %}{% endfor %}",
    "macro": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "recursive loop": "{% for i in [9] recursive %}{% if i %}{{ loop([i - 1] * 99) }}{% endif %}{% endfor %}",
    "select": "{% set l = range(10**5) | list %}{{ range(10**5) | map('string') | select('in', l) | list }}",
    "compare": "{% set a, b = range(10**4) | list, range(10**4) | list %}"
    "{% for i in range(10**5) %}{% if a == b %}{% endif %}{% endfor %}",
}
FORBIDDEN = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "item": "{{ messages['__class__']['__mro__'] }}",
    "globals": "{{ raise_exception.__globals__['json'] }}",
    "init": "{{ cycler.__init__.__globals__.os.system('true') }}",
    "format": "{{ '{0.__class__.__mro__}'.format(1).x.y }}",
    "map": "{{ (messages | map(attribute='__class__') | list)[0].__mro__ }}",
    "attr": "{{ messages | attr('__class__') }}",
    "change": "{{ messages.append(1) }}",
    "update": "{{ messages[0].update(role='x') }}",
    "include": "{% include '/etc/hostname' %}",
    "import": "{% import 'os' as os %}",
}
BROKEN = {
    "syntax": "{% if %}",
    "unknown filter": "{{ messages | nosuch }}",
    "undefined": "{{ nothing.at.all }}",
    "type": "{{ 'a' + 1 }}",
    "division": "{{ 1 // 0 }}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "parentheses": "{{ " + "(" * 9999 + "1" + ")" * 9999 + " }}",
    "nots": "{{ " + "not " * 9999 + "1 }}",
    "blocks": "{% for a in b %}" * 50 + "{% endfor %}" * 50,
    "backtracking": "{{ ('{' ~ ':' * 10**6).format() }}",
    "exception": "{{ raise_exception('Only two\n roles.') }}",
}


def sentence_of(source: str, messages: list[dict[str, Any]] = USER) -> str:
    with pytest.raises(UserError) as caught:
        ChatTemplate(source).render(messages, NAMES)
    text = str(caught.value)
    assert text.startswith("The chat template") and text.endswith(".") and "\n" not in text and len(text) < 500
    return text


@pytest.mark.parametrize("source", GROWING.values(), ids=GROWING)
def test_giant_values_are_one_sentence(source: str) -> None:
    tracemalloc.start()
    try:
        assert "MemoryError" not in sentence_of(source, [{"role": "user", "content": "a" * 10**5}])
        assert tracemalloc.get_traced_memory()[1] < 300e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("source", NESTED.values(), ids=NESTED)
def test_nested_values_are_one_sentence(source: str) -> None:
    assert re.search(r"more than (4,194,304|2 seconds)", sentence_of(source)), "by size, or on a slow machine by time"


@pytest.mark.parametrize("source", ENDLESS.values(), ids=ENDLESS)
def test_endless_templates_are_one_sentence(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "_SECONDS", 0.2)
    assert "more than 0.2 seconds" in sentence_of(source)


def test_endless_loop_at_the_real_limit() -> None:
    assert "more than 2 seconds" in sentence_of(ENDLESS["loops"])


@pytest.mark.parametrize("source", FORBIDDEN.values(), ids=FORBIDDEN)
def test_escapes_are_one_sentence(source: str) -> None:
    messages = [{"role": "user", "content": "x"}]
    sentence_of(source, messages)
    assert messages == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("source", BROKEN.values(), ids=BROKEN)
def test_failures_are_one_sentence(source: str) -> None:
    sentence_of(source)


def test_exception_of_a_template_reaches_the_user() -> None:
    assert sentence_of(BROKEN["exception"]).endswith("Only two roles.")


@pytest.mark.parametrize("messages", [[], {}, "hi", ["hi"], [{"content": "x"}], [{"role": "user", "content": b"x"}]])
def test_bad_messages_are_one_sentence(messages: Any) -> None:
    with pytest.raises(UserError, match=r"^(Chat messages must be|messages\[0\]\.content must be) .*\.$"):
        ChatTemplate(CHATML).render(messages, NAMES)
