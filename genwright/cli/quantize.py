"""`genwright quantize`: write a checkpoint with quantized weights."""

from pathlib import Path
from typing import Annotated

import typer

from genwright.cli.app import Arch, Source, new_app
from genwright.cli.progress import bar
from genwright.errors import UserError

app = new_app()


@app.command()
def quantize(
    source: Source,
    target: Annotated[Path, typer.Argument(metavar="DST", help="The folder to write; it must not exist yet.")],
    form: Annotated[
        str, typer.Option("--format", help="int8, int4, int4:g64, int4:g64:asym, fp8 or fp8:channel.")
    ] = "int4",
    method: Annotated[str, typer.Option(help="rtn (round to nearest) or gptq (needs --calibration).")] = "rtn",
    calibration: Annotated[
        Path | None, typer.Option(help="A text file for gptq, similar to the model's training data.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    arch: Arch = None,
) -> None:
    """Write a checkpoint whose linear layers and experts are quantized; `generate` and `chat` read it."""
    from genwright.device import pick_device
    from genwright.quant.formats import parse_format
    from genwright.text.catalogue import resolve
    from genwright.text.checkpoints.open import open_checkpoint
    from genwright.text.config_file import read_text
    from genwright.text.export.calibration import calibrated, calibration_windows
    from genwright.text.export.quantize import quantize as write

    if method not in ("rtn", "gptq"):
        raise UserError(f"--method must be rtn or gptq, not {method!r:.60}.")
    if (method == "gptq") != (calibration is not None):
        raise UserError("--method gptq and --calibration FILE must be given together.")
    if target.suffix.lower() == ".gguf":
        raise UserError(f"{target} must be the name of a folder; `genwright convert --to q4_0` writes a GGUF file.")
    parsed, where = parse_format(form), pick_device(device)
    checkpoint = open_checkpoint(resolve(source), arch)
    windows = None if calibration is None else calibration_windows(checkpoint, read_text(calibration))
    with bar("Quantizing") as progress:
        if windows is None:
            write(checkpoint, target, parsed, where, progress)
        else:
            layers = calibrated(checkpoint, parsed, windows, where, progress)
            write(checkpoint, target, parsed, where, lambda done, total: None, layers)
    print(f"Wrote {target}.")
