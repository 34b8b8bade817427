"""The items of a response's output: messages and function calls."""

import secrets
from typing import Any


def output_text(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def message_item(
    content: list[dict[str, Any]], item_id: str | None = None, status: str = "completed"
) -> dict[str, Any]:
    made = item_id or f"msg_{secrets.token_hex(12)}"
    return {"type": "message", "id": made, "status": status, "role": "assistant", "content": content}


def call_item(
    call_id: str, name: str, arguments: str, item_id: str | None = None, status: str = "completed"
) -> dict[str, Any]:
    made = item_id or f"fc_{secrets.token_hex(12)}"
    known = {"call_id": call_id, "name": name, "arguments": arguments, "status": status}
    return {"type": "function_call", "id": made, **known}
