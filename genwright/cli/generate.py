"""`genwright generate`: complete or answer prompts."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genwright.cli.app import new_app
from genwright.cli.flags import expand
from genwright.cli.logprobs import show_logprobs
from genwright.cli.options import DEFAULT_MODEL, Model, load
from genwright.cli.progress import bar
from genwright.errors import UserError
from genwright.text.engine.request import Acceptance, SamplingParams
from genwright.text.settings import EngineConfig

if TYPE_CHECKING:
    from genwright.text.engine.request import Piece, Result
    from genwright.text.llm import LLM

app = new_app()


@app.command()
@expand
def generate(
    config: EngineConfig,
    params: SamplingParams,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            help="Prompts, each answered for itself; with - among them all are one, and - is standard input's text."
        ),
    ] = None,
    model: Model = DEFAULT_MODEL,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put prompts as a user's message, by the chat template.")
    ] = False,
    prompts_file: Annotated[
        Path | None,
        typer.Option("--prompts", help="A file of prompts, one per line, or JSONL with parameters per line."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="With --prompts: the JSONL to write; continued if it exists.")
    ] = None,
    prompt_length: Annotated[int | None, typer.Option(help="A synthetic prompt of so many tokens.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per prompt.")] = False,
) -> None:
    """Complete prompts (or answer them, with --chat), with a text model; without --model, with the default one."""
    if sum([bool(prompts), prompts_file is not None, prompt_length is not None]) > 1:
        raise UserError("Give prompts as arguments, or --prompts FILE, or --prompt-length N: one of them.")
    if (prompts_file is None) != (out is None):
        raise UserError("--prompts FILE and --out FILE go together.")
    if prompts_file is not None and not prompts_file.is_file():
        raise UserError(f"There is no file {prompts_file}.")
    if prompt_length is not None and prompt_length < 1:
        raise UserError(f"--prompt-length must be 1 or more, not {prompt_length}.")
    texts = _with_input(prompts or []) if prompts_file is None and prompt_length is None else []
    llm = load(model, config)
    if prompts_file is not None and out is not None:
        _run_file(llm, prompts_file, out, params, chat)
    elif prompt_length is not None:
        _answer(llm, [_synthetic(prompt_length, llm.model.cfg.vocab_size)], params, as_json)
    else:
        _answer(llm, texts, params, as_json, chat)


def _with_input(prompts: list[str]) -> list[str]:
    """The prompts, or one that holds standard input where `-` stands or where a pipe is all there is."""
    if prompts and "-" not in prompts:
        return prompts
    terminal = sys.stdin is None or sys.stdin.isatty()
    if terminal and not prompts:
        raise UserError(
            'Give a prompt, as in genwright generate "Once upon a time", or pipe one in; `genwright chat` talks.'
        )
    if terminal:
        print("Type the prompt; Ctrl-D on a line of its own ends it.", file=sys.stderr)
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig").rstrip("\n")  # as the shell's $(...) has it
    except UnicodeDecodeError as error:
        raise UserError(f"Standard input is not UTF-8 text: byte {error.start} is no part of a character.") from None
    if not text.strip():
        raise UserError("Standard input is empty; give a prompt as an argument, or pipe one in.")
    return ["\n\n".join(text if prompt == "-" else prompt for prompt in prompts or ["-"])]


def _answer(llm: "LLM", prompts: list[Any], params: SamplingParams, as_json: bool, chat: bool = False) -> None:
    """Stream a single answer; print several when they are done."""
    single = len(prompts) == 1 and params.n == 1 and not as_json
    first_step = 0

    def show(piece: "Piece") -> None:
        nonlocal first_step
        first_step = first_step or llm.engine.steps
        if single:
            print(piece.text if llm.tokenizer else "".join(f"{token} " for token in piece.ids), end="", flush=True)

    asked = [llm.encode_chat([{"role": "user", "content": prompt}]) for prompt in prompts] if chat else prompts
    started = time.perf_counter()
    results = llm.generate(asked, params, show)
    seconds = time.perf_counter() - started
    if single:
        print()
    for index, result in enumerate(results):
        if as_json:
            from genwright.text.batch import as_json as row

            print(json.dumps({"prompt": prompts[index], **row(result)}, ensure_ascii=False))
            continue
        show_logprobs(f"Prompt {index + 1}" if len(results) > 1 else "Prompt", result.prompt_logprobs, llm.tokenizer)
        for number, sample in enumerate((result, *result.samples), 1):
            if not single:
                name = f"prompt {index + 1}" + (f", sample {number}" if result.samples else "")
                print(f"--- {name}, seed {sample.seed}\n{sample.text if llm.tokenizer else sample.ids}")
            show_logprobs("Answer", sample.logprobs, llm.tokenizer)
    if any(result.finish_reason == "error" for result in results):
        raise UserError("The model's output was not numbers, or memory ran out, so an answer was broken off.")
    samples = [sample for result in results for sample in (result, *result.samples)]
    tokens = sum(len(sample.ids) for sample in samples)
    read = llm.model.step_bytes * (llm.engine.steps - first_step)
    print(summary(tokens, seconds, results[0], read, _memory(llm)), file=sys.stderr)
    if params.n > 1 and params.temperature == 0:
        print("At temperature 0 all samples are the same; --temperature 0.8 draws different ones.", file=sys.stderr)
    if llm.engine.speculation is not None:
        print(guesses(samples), file=sys.stderr)


def summary(tokens: int, seconds: float, result: "Result", read: int, memory: int) -> str:
    """Tokens, seconds, tokens/s, bytes of weights read per second after the first token, and memory."""
    first = result.timing.first_token
    return (
        f"{tokens} tokens in {seconds:.2f} s: {tokens / seconds:.1f} tokens/s, first after {first:.2f} s, "
        f"{read / max(seconds - first, 1e-9) / 1e9:.1f} GB/s of weights, {memory / 1e9:.2f} GB of memory, "
        f"seed {result.seed}"
    )


def guesses(results: list["Result"]) -> str:
    """How a draft's guesses fared: tokens accepted per guess, and the share of them at each position."""
    total = Acceptance()
    for result in results:
        if result.acceptance is not None:
            total.add(result.acceptance)
    if not total.drafted:
        return "nothing was drafted"
    rates = " ".join(f"{rate:.2f}" for rate in total.rates)
    return f"{total.drafted[0]} guesses, {total.mean:.2f} tokens of each accepted; acceptance by position: {rates}"


def _memory(llm: "LLM") -> int:
    """The peak: of the GPU, or of this process."""
    if llm.model.device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(llm.model.device)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _synthetic(length: int, vocab: int) -> list[int]:
    """Token ids that look random and are the same every time."""
    from genwright.rng import key

    return [key(0, position) % vocab for position in range(length)]


def _run_file(llm: "LLM", prompts: Path, out: Path, params: SamplingParams, chat: bool) -> None:
    from genwright.text.batch import Results, read_jobs, read_lines, run_jobs

    lines = read_lines(prompts)
    results = Results(out)
    total, done = len(lines), 0

    with bar("Prompts") as progress:

        def tick() -> None:
            nonlocal done
            done += 1
            progress(done, total)

        def tell(line: str) -> None:
            print(f"{prompts}: {line}", file=sys.stderr)

        try:
            bad = run_jobs(llm, read_jobs(lines, params, llm, chat), results, tell, tick)
        except KeyboardInterrupt:
            print(f"Stopped after {done} of {total} lines; the same command goes on from there.", file=sys.stderr)
            raise
        finally:
            results.close()
    if bad:
        raise UserError(f"{bad} of {total} lines of {prompts} could not be run; the others are in {out}.")
    print(f"{total} results are in {out}.", file=sys.stderr)
