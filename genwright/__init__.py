"""Genwright runs, measures, serves and inspects generative models, text and images."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from genwright.kernels.cpu.amx import disable_broken_amx
from genwright.kernels.cpu.threads import limit_spinning

if TYPE_CHECKING:
    from genwright.images.sampling.pipeline import ImageModel as ImageModel
    from genwright.inspect.executor import Executor as Executor
    from genwright.text.engine.request import SamplingParams as SamplingParams
    from genwright.text.llm import LLM as LLM

_MODULES = {
    "Executor": "genwright.inspect.executor",
    "ImageModel": "genwright.images.sampling.pipeline",
    "LLM": "genwright.text.llm",
    "SamplingParams": "genwright.text.engine.request",
}
__all__ = ["LLM", "Executor", "ImageModel", "SamplingParams"]

# These only set environment variables, which torch reads when it is imported.
disable_broken_amx()
limit_spinning()


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that `import genwright` stays fast."""
    if name not in _MODULES:
        raise AttributeError(f"module 'genwright' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
