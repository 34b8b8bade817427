"""POST /tokenize, /detokenize and /apply-template, with the names of llama.cpp's server."""

from functools import partial
from typing import Any

from starlette.requests import Request

from genwright.serve.chat_completions import tool_use
from genwright.serve.chat_messages import template_messages
from genwright.serve.chat_prompt import ChatPrompt
from genwright.serve.field_checks import object_of
from genwright.serve.generation import prepare
from genwright.serve.request_fields import CHAT, FLAG, IDS, NAME, TEXT
from genwright.serve.service import Service

TOKENIZE = object_of({"content": TEXT, "model": NAME, "add_special": FLAG, "with_pieces": FLAG}, "content")
DETOKENIZE = object_of({"tokens": IDS, "model": NAME}, "tokens")
APPLY_TEMPLATE = object_of({name: CHAT[name] for name in ("messages", "model", "tools", "tool_choice")}, "messages")


async def tokenize(service: Service, request: Request, given: dict[str, Any]) -> dict[str, Any]:
    """The token ids of a text; `with_pieces` adds each token's text, or its bytes if it is part of a character."""
    service.model_name(given, request.scope["record"])
    tokenizer = service.need_tokenizer()
    ids = await prepare(request, tokenizer.encode, given["content"], given.get("add_special", False))
    if not given.get("with_pieces"):
        return {"tokens": ids}
    pieces = [tokenizer.token_text(token_id) for token_id in ids]
    return {
        "tokens": [
            {"id": token_id, "piece": list(piece) if isinstance(piece, bytes) else piece}
            for token_id, piece in zip(ids, pieces, strict=True)
        ]
    }


async def detokenize(service: Service, request: Request, given: dict[str, Any]) -> dict[str, Any]:
    service.model_name(given, request.scope["record"])
    tokenizer = service.need_tokenizer()
    return {"content": await prepare(request, partial(tokenizer.decode, skip_special=False), given["tokens"])}


async def apply_template(service: Service, request: Request, given: dict[str, Any]) -> dict[str, Any]:
    """The text that a chat's messages become."""
    service.model_name(given, request.scope["record"])
    messages = template_messages(given["messages"])
    return {"prompt": (await prepare(request, ChatPrompt, service, messages, tool_use(given), {})).text}
