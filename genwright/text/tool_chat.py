"""Chat with tools: prompts that name them, parameters whose grammar makes calls right, and results with the calls."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from genwright.errors import UserError
from genwright.text.engine.request import Result, SamplingParams
from genwright.text.tokenizer.chat_template import Messages, with_texts
from genwright.text.tokenizer.tokenizer import Tokenizer
from genwright.text.tokenizer.tool_messages import render_with_tools
from genwright.text.tool_calls import STYLES, parse_tool_calls, tool_grammar, tool_style
from genwright.text.tool_calls.grammar import arguments_schema
from genwright.text.tool_calls.lark import resolve_markers
from genwright.text.tool_calls.styles import DEFAULT, functions


def style_of(tokenizer: Tokenizer) -> str:
    """The style in which a model writes tool calls, by its chat template."""
    return tool_style(tokenizer.chat_template or "") or DEFAULT


def shown_tokens(tokenizer: Tokenizer) -> frozenset[int]:
    """Special tokens that are part of tool calls, so they are text of an answer."""
    found = [tokenizer.token_id(marker) for marker in STYLES[style_of(tokenizer)].markers]
    return frozenset(token for token in found if token is not None)


def encode_chat(tokenizer: Tokenizer, messages: Messages, allow_control_tokens: bool, tools: Any) -> list[int]:
    """The token ids of a conversation; see `render_with_tools`."""
    messages = with_texts(messages)
    if tools:
        functions(tools)
    return tokenizer.encode_rendered(render_with_tools(tokenizer, messages, tools, not allow_control_tokens))


def with_tools(
    params: SamplingParams,
    tools: Any,
    choice: Any,
    parallel: bool,
    tokenizer: Tokenizer,
    check: Callable[[SamplingParams], object],
) -> SamplingParams:
    """Parameters whose grammar makes the calls right; `check` raises a UserError if a schema cannot be followed."""
    if choice == "none":
        return params
    if not tools:
        raise UserError("tool_choice needs tools to choose from.")
    if not (params.schema is params.regex is params.grammar is None):
        raise UserError("Pass either tools, or one of schema, regex and grammar.")
    for index, function in enumerate(functions(tools)):
        try:
            check(SamplingParams(schema=arguments_schema(function)))
        except UserError as error:
            raise UserError(f"tools[{index}].function.parameters: {error}") from None
    grammar = tool_grammar(tools, choice, style_of(tokenizer), parallel)
    return replace(params, grammar=resolve_markers(grammar, tokenizer.token_id))


def with_calls(result: Result, style: str, tools: Any) -> Result:
    """A result with its calls apart from its text."""
    if result.text is None:
        return result
    text, calls = parse_tool_calls(result.text, style, tools)
    samples = [with_calls(each, style, tools) for each in result.samples]
    return replace(result, text=text, tool_calls=calls, samples=samples)
