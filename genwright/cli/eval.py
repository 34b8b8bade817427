"""`genwright eval`: how well a model predicts a text, or does on published tasks."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from genwright.cli.app import new_app
from genwright.cli.options import ModelOptions, expand
from genwright.cli.progress import bar
from genwright.errors import UserError

app = new_app()


@app.command(name="eval")
@expand
def evaluate(
    options: ModelOptions,
    model: Annotated[str, typer.Argument(help="A checkpoint's path, or a name from `genwright pull`.")],
    text: Annotated[Path | None, typer.Option(help="A text file, for perplexity and bits per byte.")] = None,
    window: Annotated[int | None, typer.Option(help="Tokens that the model sees at a time.")] = None,
    stride: Annotated[int | None, typer.Option(help="Tokens by which the window moves; half of it by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure how well a text model predicts a file."""
    if text is None:
        raise UserError("give --text FILE: what the model should predict.")
    from genwright.bench.evaluate import evaluate, read_text

    words = read_text(text)
    llm = options.load(model)
    started = time.perf_counter()
    with bar("Evaluating") as progress:
        found = evaluate(llm, words, window, stride, progress)
    row = {
        "text": str(text),
        "tokens": found.tokens,
        "bytes": found.bytes,
        "loss": found.loss,
        "perplexity": found.perplexity,
        "bits_per_byte": found.bits_per_byte,
        "seconds": time.perf_counter() - started,
    }
    if as_json:
        print(json.dumps({"model": model, **row}))
        return
    print(
        f"perplexity {found.perplexity:.4f}, {found.bits_per_byte:.4f} bits per byte, loss {found.loss:.5f} over "
        f"{found.tokens} tokens ({found.bytes} bytes) in {row['seconds']:.1f} s"
    )
