"""`genwright convert`: write a checkpoint in another format."""

from pathlib import Path
from typing import Annotated

import typer

from genwright.cli.app import new_app
from genwright.cli.progress import bar

app = new_app()


@app.command()
def convert(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="A checkpoint: a folder, a file, a name, or random:NAME.")
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="The folder to write; it must not exist yet.")],
    to: Annotated[str, typer.Option(help="safetensors, or gptfast for its model.pth.")] = "safetensors",
    dtype: Annotated[str, typer.Option(help="auto (as stored), float32, float16 or bfloat16.")] = "auto",
    arch: Annotated[str | None, typer.Option(help="The named shape of a checkpoint that has no configuration.")] = None,
) -> None:
    """Write a checkpoint as a Hugging Face safetensors folder or as gpt-fast's model.pth."""
    from genwright.text.checkpoints import open_checkpoint, parse_dtype
    from genwright.text.checkpoints.convert import convert as write
    from genwright.text.pull import resolve

    checkpoint = open_checkpoint(resolve(source), arch)
    with bar("Converting") as progress:
        write(checkpoint, target, to, parse_dtype(checkpoint.config.dtype if dtype == "auto" else dtype), progress)
    print(f"Wrote {target}.")
