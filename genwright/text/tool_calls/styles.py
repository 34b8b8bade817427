"""The ways in which model families write tool calls, and how a chat template tells which one is meant."""

from dataclasses import dataclass
from typing import Any

from genwright.arguments import short
from genwright.errors import UserError


@dataclass(frozen=True)
class Style:
    """The text around the calls of an answer, and around the name and the arguments of each."""

    trigger: str  # what begins the calls; empty if only an answer that begins with a call has one
    markers: tuple[str, ...]  # texts that are special tokens in some vocabularies
    begin: str  # before the first call
    name: str  # before a name
    arguments: str  # between a name and its arguments
    end: str  # after the arguments
    separator: str  # between two calls
    close: str  # after the last call


_BAR = "\uff5c"  # DeepSeek's, which is wider than |
_DEEPSEEK = tuple(
    f"<{_BAR}tool▁{name}{_BAR}>" for name in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")
)
_CALLS, _CALL, _SEP, _END, _CALLS_END = _DEEPSEEK
_TAGS = ("<tool_call>", "</tool_call>")
_MISTRAL = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
_PYTHON = ("<|python_start|>", "<|python_end|>")

STYLES = {
    # Nous Hermes, Qwen 2.5 and 3, and many others
    "hermes": Style(
        _TAGS[0], _TAGS, "<tool_call>\n", '{"name": "', '", "arguments": ', "}\n</tool_call>", "\n<tool_call>\n", ""
    ),
    # Qwen 3 Coder and Qwen 3.5
    "qwen3-coder": Style(
        _TAGS[0], _TAGS, "<tool_call>\n", "<function=", ">\n", "</function>\n</tool_call>", "\n<tool_call>\n", ""
    ),
    # Llama 3.1 to 3.3
    "llama3": Style("", ("<|python_tag|>",), "", '{"name": "', '", "parameters": ', "}", "; ", ""),
    # Llama 4, and Llama 3.2's smaller models
    "pythonic": Style("", _PYTHON, "[", "", "(", ")", ", ", "]"),
    # Mistral's tokenizers up to version 7, and from version 11 on
    "mistral": Style(_MISTRAL[0], _MISTRAL, "[TOOL_CALLS][", '{"name": "', '", "arguments": ', "}", ", ", "]"),
    "mistral-args": Style(_MISTRAL[0], _MISTRAL, "[TOOL_CALLS]", "", "[ARGS]", "", "[TOOL_CALLS]", ""),
    # DeepSeek V3 and R1, and V3.1
    "deepseek": Style(
        _CALLS,
        _DEEPSEEK,
        _CALLS,
        f"{_CALL}function{_SEP}",
        "\n```json\n",
        f"\n```{_END}",
        "\n",
        _CALLS_END,
    ),
    "deepseek-v3.1": Style(_CALLS, _DEEPSEEK, _CALLS, _CALL, _SEP, _END, "", _CALLS_END),
}
_NOT_HERMES = ("<arg_key>", "<invoke", "<tool_calls>")  # in templates that use the tag of Hermes for other forms
DEFAULT = "hermes"  # for a chat template that has no tools; `described_tools` tells the model


def tool_style(chat_template: str) -> str | None:
    """The style of the calls that a chat template asks for; None if it has no tools, or writes them in another way."""
    if "tools" not in chat_template and "tool_calls" not in chat_template:
        return None
    if "[TOOL_CALLS]" in chat_template:
        return "mistral-args" if "[ARGS]" in chat_template else "mistral"
    if _CALL in chat_template:
        return "deepseek" if "```json" in chat_template else "deepseek-v3.1"
    if "<function=" in chat_template:
        return "qwen3-coder" if "<tool_call>" in chat_template and "<parameter=" in chat_template else None
    if "<tool_call>" in chat_template and not any(each in chat_template for each in _NOT_HERMES):
        return "hermes"
    if "<|python_start|>" in chat_template or "[func_name1(" in chat_template:
        return "pythonic"
    return "llama3" if "<|python_tag|>" in chat_template or '"parameters": dictionary' in chat_template else None


def functions(tools: Any) -> list[dict[str, Any]]:
    """The functions of OpenAI's list of tools, checked."""
    if not isinstance(tools, list) or not tools:
        raise UserError(f"tools must be a list of functions, not {short(tools)}.")
    found = []
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        function = function if isinstance(function, dict) else {}
        name = function.get("name")
        if not isinstance(name, str) or not name.replace("_", "a").replace("-", "a").replace(".", "a").isalnum():
            raise UserError(
                f'tools[{index}] must be {{"type": "function", "function": {{"name": ..., "parameters": ...}}}} with a '
                f"name of letters, digits, underscores, dots and dashes, not {short(tool)}."
            )
        parameters = function.get("parameters") or {}
        if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
            raise UserError(
                f"tools[{index}].function.parameters must be the JSON Schema of an object, not {short(parameters)}."
            )
        found.append(function)
    return found
