"""`genwright generate`: complete or answer prompts."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genwright.arguments import counted
from genwright.cli.app import Json, check_writable, new_app
from genwright.cli.flags import expand
from genwright.cli.logprobs import show_logprobs
from genwright.cli.options import Model, load
from genwright.cli.progress import bar
from genwright.errors import UserError
from genwright.text.catalogue import DEFAULT
from genwright.text.engine.request import STOPPED_EARLY, Acceptance, SamplingParams
from genwright.text.settings import EngineConfig

if TYPE_CHECKING:
    from genwright.text.engine.request import Piece, Result
    from genwright.text.engine.run_report import RunReport
    from genwright.text.llm import LLM

app = new_app()


@app.command()
@expand
def generate(
    config: EngineConfig,
    params: SamplingParams,
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts; - is replaced by standard input.")] = None,
    model: Model = DEFAULT,
    chat: Annotated[bool, typer.Option("--chat", help="Send prompts as user messages, by the chat template.")] = False,
    prompts_file: Annotated[Path | None, typer.Option("--prompts", help="A file of prompts: lines or JSONL.")] = None,
    out: Annotated[Path | None, typer.Option(help="The JSONL file for --prompts; continued if it exists.")] = None,
    prompt_length: Annotated[int | None, typer.Option(help="Use a synthetic prompt of this many tokens.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the report of a placed model's run here, as JSON.")] = None,
    as_json: Json = False,
) -> None:
    """Complete prompts, or answer them with --chat; with - among the prompts, all of them form one."""
    if sum([bool(prompts), prompts_file is not None, prompt_length is not None]) > 1:
        raise UserError("Pass only one of prompts as arguments, --prompts FILE and --prompt-length N.")
    if (prompts_file is None) != (out is None):
        raise UserError("--prompts FILE and --out FILE must be given together.")
    if _is_first_rank():
        _check_files(prompts_file, out, report)
    if prompt_length is not None and prompt_length < 1:
        raise UserError(f"--prompt-length must be 1 or more, not {prompt_length}.")
    texts = _with_input(prompts or []) if prompts_file is None and prompt_length is None else []
    lines = _lines(prompts_file) if prompts_file is not None and _is_first_rank() else []
    llm = load(model, config)
    if report is not None and llm.meter() is None:
        raise UserError("--report needs a model that is placed in several tiers; pass --offload.")
    if prompts_file is not None and out is not None:
        _run_file(llm, prompts_file, lines, out, params, chat, report)
    elif prompt_length is not None:
        from genwright.rng import key

        ids = [key(0, position) % llm.model.cfg.vocab_size for position in range(prompt_length)]
        _answer(llm, [ids], params, as_json, report=report)
    elif llm.tokenizer is None:
        raise UserError(
            f"{model} has no tokenizer, so it reads no text; pass --prompt-length N for a synthetic prompt."
        )
    else:
        _answer(llm, texts, params, as_json, chat, report)


def _is_first_rank() -> bool:
    """Of torchrun's ranks only the first reads and writes files, which others may not have."""
    return os.environ.get("RANK", "0") == "0"


def _check_files(prompts: Path | None, out: Path | None, report: Path | None) -> None:
    """Raise an error if a file cannot be read or written, before anything is loaded."""
    if prompts is not None and (os.path.isdir(prompts) or not os.path.exists(prompts)):  # a pipe is a file too
        raise UserError(f"There is no file {prompts}.")
    if report is not None and os.path.realpath(report) in [os.path.realpath(path) for path in (prompts, out) if path]:
        raise UserError(f"--report would overwrite {report}; name another file.")
    for path in (out, report):
        if path is not None:
            check_writable(path)


def _lines(prompts: Path) -> list[tuple[int, str]]:
    from genwright.text.batch import read_lines

    if lines := read_lines(prompts):
        return lines
    raise UserError(f"{prompts} has no prompts.")


def _with_input(prompts: list[str]) -> list[str]:
    """The prompts; with `-` among them, or without any, one prompt that contains standard input."""
    if (prompts and "-" not in prompts) or not _is_first_rank():
        return prompts
    terminal = sys.stdin.isatty()
    if terminal and not prompts:
        raise UserError(
            'Pass a prompt, as in genwright generate "Once upon a time", or pipe one in; or use `genwright chat`.'
        )
    if terminal:
        print("Type the prompt; end it with Ctrl-D on a new line.", file=sys.stderr)
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig").rstrip("\r\n")  # as the shell's $(...) does
    except UnicodeDecodeError as error:
        raise UserError(f"Standard input is not UTF-8 text: byte {error.start} is invalid.") from None
    if not text.strip():
        raise UserError("Standard input is empty; pass a prompt as an argument, or pipe one in.")
    return ["\n\n".join(text if prompt == "-" else prompt for prompt in prompts or ["-"])]


def _answer(
    llm: "LLM",
    prompts: list[Any],
    params: SamplingParams,
    as_json: bool,
    chat: bool = False,
    report: Path | None = None,
) -> None:
    """Stream a single answer, or print several at the end; Ctrl-C ends them and prints the text so far."""
    from genwright.device import peak_memory
    from genwright.text import batch

    single = len(prompts) == 1 and params.n == 1 and not as_json
    first_step = tokens = 0
    asked = [llm.encode_chat([{"role": "user", "content": prompt}]) for prompt in prompts] if chat else prompts
    started, meter = time.perf_counter(), llm.meter()
    with bar("Tokens", not single) as progress:

        def show(piece: "Piece") -> None:
            nonlocal first_step, tokens
            first_step, tokens = first_step or llm.engine.steps, tokens + len(piece.ids)
            progress(tokens, 0)
            if single:
                print(piece.text if llm.tokenizer else "".join(f"{token} " for token in piece.ids), end="", flush=True)

        results, interrupted = _results(llm, asked, params, show)
    seconds = time.perf_counter() - started
    if single:
        print()
    for index, result in enumerate(results):
        if as_json:
            print(json.dumps({"prompt": prompts[index], **batch.as_json(result)}, ensure_ascii=False))
            continue
        show_logprobs(f"Prompt {index + 1}" if len(results) > 1 else "Prompt", result.prompt_logprobs, llm.tokenizer)
        for number, sample in enumerate((result, *result.samples), 1):
            if not single:
                name = f"prompt {index + 1}" + (f", sample {number}" if result.samples else "")
                print(f"--- {name}, seed {sample.seed}\n{sample.text if llm.tokenizer else sample.ids}")
            show_logprobs("Answer", sample.logprobs, llm.tokenizer)
    if interrupted:
        raise KeyboardInterrupt
    samples = [sample for result in results for sample in (result, *result.samples)]
    if any(sample.finish_reason == "error" for sample in samples):
        raise UserError(STOPPED_EARLY)
    read = llm.model.step_bytes * (llm.engine.steps - first_step)
    print(summary(tokens, seconds, results[0], read, peak_memory(llm.model.device)), file=sys.stderr)
    if meter is not None:
        _show_report(meter.report(results), report)
    if params.n > 1 and params.temperature == 0:
        print("At temperature 0 all samples are equal; use e.g. --temperature 0.8.", file=sys.stderr)
    if llm.engine.speculation is not None:
        print(acceptance(samples), file=sys.stderr)


def _results(
    llm: "LLM", prompts: list[Any], params: SamplingParams, show: Callable[["Piece"], None]
) -> tuple[list["Result"], bool]:
    """The results, and whether Ctrl-C or SIGTERM ended them after the current step; a second one ends the command."""
    from genwright.text.llm import gather

    each = [llm.requests(prompt, params, index) for index, prompt in enumerate(prompts)]
    requests, interrupted = [request for samples in each for request in samples], False

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # A signal that is ignored, as Ctrl-C is in a script's background job, stays so.
    before = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def stop(*_: object) -> None:
        nonlocal interrupted
        interrupted = True
        restore()
        llm.loop.cancel(requests)

    for number in before:
        signal.signal(number, stop)
    try:
        with closing(llm.follow(requests)) as pieces:
            for _, piece in pieces:
                if interrupted:
                    llm.loop.cancel(requests)  # the signal may have come before the loop had them
                show(piece)
    finally:
        restore()
    return [gather([request.result() for request in samples]) for samples in each], interrupted


def _show_report(found: "RunReport", path: Path | None) -> None:
    print("\n".join(found.lines()), file=sys.stderr)
    if path is not None:
        try:
            path.write_text(json.dumps(found.as_json(), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"The report {path} cannot be written: {error.strerror}.") from None


def summary(tokens: int, seconds: float, result: "Result", read: int, memory: int) -> str:
    """Tokens, seconds, tokens/s, bytes of weights read per second after the first token, and memory."""
    first = result.timing.first_token
    return (
        f"{counted(tokens, 'token')} in {seconds:.2f} s: {tokens / seconds:.1f} tokens/s, first after {first:.2f} s, "
        f"{read / max(seconds - first, 1e-9) / 1e9:.1f} GB/s of weights, {memory / 1e9:.2f} GB of memory, "
        f"seed {result.seed}"
    )


def acceptance(results: list["Result"]) -> str:
    """How many tokens of a draft's proposals were accepted, on average and by position."""
    total = Acceptance()
    for result in results:
        total.add(result.acceptance or Acceptance())
    if not total.drafted:
        return "nothing was drafted"
    rates = " ".join(f"{rate:.2f}" for rate in total.rates)
    return f"{total.drafted[0]} proposals, {total.mean:.2f} tokens of each accepted; acceptance by position: {rates}"


def _run_file(
    llm: "LLM",
    prompts: Path,
    lines: list[tuple[int, str]],
    out: Path,
    params: SamplingParams,
    chat: bool,
    report: Path | None,
) -> None:
    from genwright.text.batch import Results, run_jobs

    total, done, tokens, meter, started = len(lines), 0, 0, llm.meter(), time.perf_counter()

    def warn(sentence: str) -> None:
        print(f"{prompts}: {sentence}", file=sys.stderr)

    with closing(Results(out)) as results, bar("Prompts") as progress:

        def tick(generated: int) -> None:
            nonlocal done, tokens
            done, tokens = done + 1, tokens + generated
            progress(done, total)

        progress(0, total)
        try:
            invalid = run_jobs(llm, lines, params, chat, results, warn, tick)
        except KeyboardInterrupt:
            print(f"Stopped after {done} of {total} lines; the same command continues there.", file=sys.stderr)
            raise
    seconds = time.perf_counter() - started
    if tokens:
        print(f"{counted(tokens, 'token')} in {seconds:.2f} s: {tokens / seconds:.1f} tokens/s", file=sys.stderr)
    if meter is not None:
        _show_report(meter.report(tokens=tokens), report)
    if invalid:
        raise UserError(f"{invalid} of {total} lines of {prompts} were skipped; results of the others are in {out}.")
    print(f"{out} has the results of all {total} lines." if total != 1 else f"{out} has the result.", file=sys.stderr)
