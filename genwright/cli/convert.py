"""`genwright convert`: write a checkpoint in another format."""

from pathlib import Path
from typing import Annotated

import typer

from genwright.cli.app import Arch, Source, new_app
from genwright.cli.progress import bar
from genwright.errors import UserError

app = new_app()


@app.command()
def convert(
    source: Source,
    target: Annotated[
        Path, typer.Argument(metavar="DST", help="The folder or GGUF file to write; it must not exist yet.")
    ],
    to: Annotated[
        str,
        typer.Option(
            help="safetensors, bf16 (safetensors with FP8 weights as bfloat16), gptfast, deepseek, gguf, or GGUF's "
            "q8_0, q4_0 or q4_1."
        ),
    ] = "safetensors",
    model_parallel: Annotated[
        int | None, typer.Option(help="Write DeepSeek's shards for this many ranks.", min=1, max=4096)
    ] = None,
    dtype: Annotated[str, typer.Option(help="auto (as stored), float32, float16 or bfloat16.")] = "auto",
    arch: Arch = None,
) -> None:
    """Write a checkpoint as a safetensors folder, a GGUF file, gpt-fast's model.pth or DeepSeek's shards."""
    from genwright.text.catalogue import resolve
    from genwright.text.checkpoints.open import open_checkpoint
    from genwright.text.checkpoints.protocol import parse_dtype
    from genwright.text.export.convert import FORMATS, GGUF_FORMATS
    from genwright.text.export.convert import convert as write
    from genwright.text.export.gguf import write_gguf

    if model_parallel is not None and to not in ("safetensors", "deepseek"):
        raise UserError(f"--model-parallel writes DeepSeek's shards; it cannot be used with --to {to}.")
    if to == "bf16" and dtype != "auto":
        raise UserError(
            "--to bf16 converts FP8 weights and keeps the others as stored; it cannot be used with --dtype."
        )
    form = to if model_parallel is None else "deepseek"
    if target.suffix.lower() == ".gguf" and form in FORMATS:
        raise UserError(f"--to {form} writes a folder, but {target} is the name of a file; pass --to gguf.")
    checkpoint = open_checkpoint(resolve(source), arch)
    kind = None if dtype == "auto" else parse_dtype(dtype)
    with bar("Converting") as progress:
        if form in GGUF_FORMATS:
            write_gguf(checkpoint, target, form, kind, progress)
        else:
            write(checkpoint, target, form, kind, progress, model_parallel or 1)
    print(f"Wrote {target}.")
