"""`genwright quantize`: write a checkpoint with packed weights."""

from pathlib import Path
from typing import Annotated

import typer

from genwright.cli.app import new_app
from genwright.cli.progress import bar

app = new_app()


@app.command()
def quantize(
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="A checkpoint: a folder, a file, a name, or random:NAME.")
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", help="The folder to write; it must not exist yet.")],
    form: Annotated[
        str, typer.Option("--format", help="int8, int4, int4:g64, int4:g64:asym, fp8 or fp8:channel.")
    ] = "int4",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    arch: Annotated[str | None, typer.Option(help="The named shape of a checkpoint that has no configuration.")] = None,
) -> None:
    """Write a checkpoint with its linear weights and experts packed, for `generate` and `chat` to open."""
    from genwright.kernels.device import pick_device
    from genwright.quant.formats import parse_format
    from genwright.text.checkpoints import open_checkpoint
    from genwright.text.checkpoints.quantize import quantize as write
    from genwright.text.pull import resolve

    parsed = parse_format(form)
    checkpoint = open_checkpoint(resolve(source), arch)
    with bar("Quantizing") as progress:
        write(checkpoint, target, parsed, pick_device(device), progress)
    print(f"Wrote {target}.")
