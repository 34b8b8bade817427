"""What commands for text models share: the --model flag, and loading with a progress bar."""

import gc
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from genwright.cli.progress import bar
from genwright.errors import UserError
from genwright.text.catalogue import DEFAULT
from genwright.text.settings import EngineConfig

if TYPE_CHECKING:
    from genwright.text.llm import LLM

_MODEL = "A checkpoint's path, a name from `genwright pull`, or random:NAME."
Model = Annotated[str, typer.Option(help=_MODEL)]
ModelArgument = Annotated[str, typer.Argument(help=_MODEL)]
AlsoModel = Annotated[str | None, typer.Option("--model", hidden=True)]  # the argument, as `generate` names it


def chosen_model(model: str, also: str | None) -> str:
    """The model's name, from the argument or from --model."""
    if also is not None and model != DEFAULT:
        raise UserError(f"Pass one model, not both {model} and --model {also}.")
    return model if also is None else also


def load(model: str, config: EngineConfig) -> "LLM":
    """Load a model and show the progress as a bar; garbage collection, which the command has paused, goes on."""
    from genwright.text.llm import LLM

    with bar("Loading") as progress:
        llm = LLM(model, config, progress, lambda sentence: print(sentence, file=sys.stderr))
    if not gc.isenabled():
        gc.freeze()  # collections need not look at what was imported and loaded
        gc.enable()
    return llm
