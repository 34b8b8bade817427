"""`genwright quantize`: write a checkpoint with packed weights."""

from pathlib import Path
from typing import Annotated

import typer

from genwright.cli.app import new_app
from genwright.cli.progress import bar
from genwright.errors import UserError

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
    method: Annotated[str, typer.Option(help="rtn: round to nearest; gptq: by a calibration text.")] = "rtn",
    calibration: Annotated[Path | None, typer.Option(help="With gptq: a file of text like the model's own.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    arch: Annotated[str | None, typer.Option(help="The named shape of a checkpoint that has no configuration.")] = None,
) -> None:
    """Write a checkpoint with its linear weights and experts packed, for `generate` and `chat` to open."""
    from genwright.device import pick_device
    from genwright.quant.formats import parse_format
    from genwright.text.catalogue import resolve
    from genwright.text.checkpoints.open import open_checkpoint
    from genwright.text.config_file import read_text
    from genwright.text.export.calibration import calibrated, calibration_windows
    from genwright.text.export.quantize import quantize as write

    if method not in ("rtn", "gptq"):
        raise UserError(f"--method should be rtn or gptq, and is {method!r:.60}.")
    if (method == "gptq") != (calibration is not None):
        raise UserError("--method gptq and --calibration FILE go together.")
    parsed, where = parse_format(form), pick_device(device)
    checkpoint = open_checkpoint(resolve(source), arch)
    layers = None
    if calibration is not None:
        windows = calibration_windows(checkpoint, read_text(calibration))
        layers = calibrated(checkpoint, parsed, windows, where)
    with bar("Quantizing") as progress:
        write(checkpoint, target, parsed, where, progress, layers)
    print(f"Wrote {target}.")
