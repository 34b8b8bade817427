"""Genwright runs, measures and inspects generative models, text and images."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from genwright.inspect.executor import Executor as Executor
    from genwright.text.engine.llm import LLM as LLM
    from genwright.text.engine.request import SamplingParams as SamplingParams

_HOMES = {
    "LLM": "genwright.text.engine.llm",
    "SamplingParams": "genwright.text.engine.request",
    "Executor": "genwright.inspect.executor",
}
__all__ = ["LLM", "Executor", "SamplingParams"]


def __getattr__(name: str) -> Any:
    """Import a public name's home on first use, so that `import genwright` stays cheap."""
    if name not in _HOMES:
        raise AttributeError(f"module 'genwright' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
