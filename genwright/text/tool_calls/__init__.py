"""Tool calls: parsed from a model's text as its family writes them, and grammars that make them right."""

from genwright.text.tool_calls.grammar import chosen_functions, tool_grammar
from genwright.text.tool_calls.parser import ToolCall, ToolParser, parse_tool_calls
from genwright.text.tool_calls.reader import Delta
from genwright.text.tool_calls.styles import STYLES, tool_style
from genwright.text.tool_calls.written import described_tools, written_calls

__all__ = [
    "STYLES",
    "Delta",
    "ToolCall",
    "ToolParser",
    "chosen_functions",
    "described_tools",
    "parse_tool_calls",
    "tool_grammar",
    "tool_style",
    "written_calls",
]
