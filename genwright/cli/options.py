"""What the verbs of text models share: the flag of the model, and how it is loaded."""

from typing import TYPE_CHECKING, Annotated

import typer

from genwright.cli.progress import bar
from genwright.text.catalogue import DEFAULT
from genwright.text.settings import EngineConfig

if TYPE_CHECKING:
    from genwright.text.llm import LLM

Model = Annotated[str, typer.Option(help="A checkpoint's path, a name from `genwright pull`, or random:NAME.")]
DEFAULT_MODEL = DEFAULT


def load(model: str, config: EngineConfig) -> "LLM":
    """A model, with a bar that shows how far its loading has come."""
    from genwright.text.llm import LLM

    with bar("Loading") as progress:
        return LLM(model, config, progress)
