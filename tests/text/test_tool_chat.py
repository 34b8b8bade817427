"""Chat with tools: in the template or the system message, with calls that are right, apart from the text."""

import json

import pytest
from text.tiny_chat import make_chat_model

from genwright import LLM, SamplingParams
from genwright.errors import UserError
from genwright.text.tool_calls import ToolParser

pytest.importorskip("llguidance")

PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
MESSAGES = [{"role": "user", "content": "Is it warm?"}]
MISTRAL = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}[TOOL_CALLS]["


@pytest.fixture(scope="module")
def llm(tmp_path_factory) -> LLM:
    return LLM(make_chat_model(tmp_path_factory.mktemp("model")), device="cpu", dtype="float32")


def test_required_calls_are_parsed(llm):
    params = SamplingParams(temperature=1.0, seed=1, max_new_tokens=300)
    result = llm.chat(MESSAGES, params, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "weather"}})
    assert result.text == "" and result.finish_reason == "stop"
    (call,) = result.tool_calls
    assert call.name == "weather" and json.loads(call.arguments)["city"] in ("Rome", "Oslo")


def test_streamed_calls(llm):
    prompt = llm.encode_chat(MESSAGES, tools=TOOLS)
    params = llm.tool_params(SamplingParams(max_new_tokens=300), TOOLS, "required", parallel=False)
    parser = ToolParser(llm.tool_style)
    deltas = [delta for piece in llm.stream(prompt, params) for delta in parser.feed(piece.text)] + parser.finish()
    assert [delta.text for delta in deltas if delta.kind == "name"] == ["weather"]
    assert json.loads("".join(delta.text for delta in deltas if delta.kind == "arguments"))
    assert len(deltas) > 3


def test_no_tools_or_none_chosen_is_a_plain_chat(llm):
    plain = llm.chat(MESSAGES, SamplingParams(max_new_tokens=5))
    for choice in ({"tools": TOOLS, "tool_choice": "none"}, {"tools": None}, {"tools": []}):
        assert llm.chat(MESSAGES, SamplingParams(max_new_tokens=5), **choice).ids == plain.ids
    with pytest.raises(UserError, match="tool_choice needs tools"):
        llm.chat(MESSAGES, tools=[], tool_choice="required")


def test_a_template_without_tools_gets_them_in_the_system_message(llm):
    text = llm.tokenizer.decode(llm.encode_chat(MESSAGES, tools=TOOLS), skip_special=False)
    assert llm.tool_style == "hermes" and '"name": "weather"' in text and text.startswith("<|im_start|>system")


def test_a_template_with_tools_renders_them(tmp_path):
    (tmp_path / "template.jinja").write_text(MISTRAL)
    folder = make_chat_model(tmp_path / "model")
    with LLM(folder, device="cpu", dtype="float32", chat_template=str(tmp_path / "template.jinja")) as llm:
        text = llm.tokenizer.decode(llm.encode_chat(MESSAGES, tools=TOOLS))
        assert llm.tool_style == "mistral" and text.startswith(json.dumps(TOOLS)) and "<tool_call>" not in text
        result = llm.chat(MESSAGES, SamplingParams(max_new_tokens=300), tools=TOOLS, tool_choice="required")
        assert result.tool_calls[0].name == "weather"


def test_what_cannot_be_done_is_one_sentence(llm):
    with pytest.raises(UserError, match=r"tools\[0\]\.function\.parameters: The schema's keyword #/not is not"):
        llm.chat(MESSAGES, tools=[{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}])
    with pytest.raises(UserError, match="either tools, or one of schema"):
        llm.chat(MESSAGES, SamplingParams(regex="a"), tools=TOOLS)
    with pytest.raises(UserError, match="tool_choice must be"):
        llm.chat(MESSAGES, tools=TOOLS, tool_choice="f")


def test_contents_are_texts_or_lists_of_text_parts(llm):
    parts = [{"type": "text", "text": "Is it"}, {"type": "text", "text": " warm?"}]
    assert llm.encode_chat([{"role": "user", "content": parts}]) == llm.encode_chat(MESSAGES)
    system = [{"role": "system", "content": parts}, *MESSAGES]
    joined = [{"role": "system", "content": "Is it warm?"}, *MESSAGES]
    assert llm.encode_chat(system, tools=TOOLS) == llm.encode_chat(joined, tools=TOOLS)
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
    for message in ({"content": None}, {}):
        asked = [*MESSAGES, {"role": "assistant", "tool_calls": [call], **message}]
        assert llm.encode_chat(asked) == llm.encode_chat([*MESSAGES, {**asked[-1], "content": ""}])


@pytest.mark.parametrize(
    "message",
    [
        *({}, {"content": None}, {"content": 5}, {"content": {"text": "hi"}}, {"content": ["hi"]}),
        *({"content": [{"type": "text"}]}, {"content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
    ],
)
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_other_contents_are_refused(message, tools, llm):
    with pytest.raises(UserError, match=r"^messages\[1\]\.content must be a text or a list of .* parts, not .*\.$"):
        llm.encode_chat([*MESSAGES, {"role": "user", **message}], tools=tools)
    with pytest.raises(UserError, match=r"^Chat messages must be a list of "):
        llm.encode_chat("Is it warm?", tools=tools)
