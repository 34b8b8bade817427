"""`genwright eval`: perplexity of a model on a text, or its scores on published tasks."""

import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from genwright.cli.app import Json, new_app
from genwright.cli.flags import expand
from genwright.cli.options import load
from genwright.cli.progress import bar
from genwright.errors import UserError
from genwright.text.settings import EngineConfig

app = new_app()


@app.command(name="eval")
@expand
def evaluate(
    config: EngineConfig,
    model: Annotated[str, typer.Argument(help="A checkpoint's path, or a name from `genwright pull`.")],
    text: Annotated[Path | None, typer.Option(help="A text file, for perplexity and bits per byte.")] = None,
    window: Annotated[int | None, typer.Option(help="Tokens per window.")] = None,
    stride: Annotated[int | None, typer.Option(help="Tokens between windows; half a window by default.")] = None,
    tasks: Annotated[str | None, typer.Option(help="Tasks of lm-evaluation-harness, separated by commas.")] = None,
    task_folder: Annotated[Path | None, typer.Option(help="A folder with your own tasks, as YAML.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of documents per task.")] = None,
    as_json: Json = False,
) -> None:
    """Measure the perplexity of a text model on a file, or run tasks of lm-evaluation-harness."""
    if (text is None) == (tasks is None):
        raise UserError("Pass either --text FILE or --tasks NAMES.")
    of_text, of_tasks = {"--window": window, "--stride": stride}, {"--task-folder": task_folder, "--limit": limit}
    for name, value in (of_tasks if tasks is None else of_text).items():
        if value is not None:
            raise UserError(f"{name} has no effect with {'--text' if tasks is None else '--tasks'}.")
    if text is not None:
        _text(config, model, text, window, stride, as_json)
        return
    if find_spec("lm_eval") is None:
        raise UserError("--tasks needs the package lm-eval: pip install 'genwright[eval]'.")
    from genwright.bench.harness import run_tasks

    llm = load(model, config)
    names = [name.strip() for name in (tasks or "").split(",") if name.strip()]
    with bar("Evaluating") as progress:
        found = run_tasks(llm, names, task_folder, limit, progress)
    if as_json:
        print(json.dumps({"model": model, "tasks": found}, default=str))
        return
    for task, figures in found.items():
        for name, value in figures.items():
            if isinstance(value, float) and "stderr" not in name:
                error = figures.get(name.replace(",", "_stderr,"))
                spread = f" +- {error:.4f}" if isinstance(error, float) else ""
                print(f"{task:<24} {name.partition(',')[0]:<16} {value:.4f}{spread}")


def _text(config: EngineConfig, model: str, text: Path, window: int | None, stride: int | None, as_json: bool) -> None:
    from genwright.bench.evaluate import evaluate
    from genwright.text.config_file import read_text

    content = read_text(text)
    llm = load(model, config)
    started = time.perf_counter()
    with bar("Evaluating") as progress:
        found = evaluate(llm, content, window, stride, progress)
    seconds = time.perf_counter() - started
    if as_json:
        figures = {"loss": found.loss, "perplexity": found.perplexity, "bits_per_byte": found.bits_per_byte}
        size = {"tokens": found.tokens, "bytes": found.bytes, "seconds": seconds}
        print(json.dumps({"model": model, "text": str(text), **figures, **size}))
        return
    print(
        f"perplexity {found.perplexity:.4f}, {found.bits_per_byte:.4f} bits per byte, loss {found.loss:.5f} over "
        f"{found.tokens} tokens ({found.bytes} bytes) in {seconds:.1f} s"
    )
