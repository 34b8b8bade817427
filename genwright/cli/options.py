"""What commands for text models share: the --model flag, and loading with a progress bar."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from genwright.cli.progress import bar
from genwright.text.settings import EngineConfig

if TYPE_CHECKING:
    from genwright.text.llm import LLM

_MODEL = "A checkpoint's path, a name from `genwright pull`, or random:NAME."
Model = Annotated[str, typer.Option(help=_MODEL)]
ModelArgument = Annotated[str, typer.Argument(help=_MODEL)]


def load(model: str, config: EngineConfig) -> "LLM":
    """Load a model and show the progress as a bar."""
    with _without_garbage_collection():
        from genwright.text.llm import LLM

        with bar("Loading") as progress:
            return LLM(model, config, progress, lambda sentence: print(sentence, file=sys.stderr))


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Hardly anything that is imported or loaded becomes garbage; looking for it took a tenth of `import torch`."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # later collections need not look at it either
        gc.enable()
