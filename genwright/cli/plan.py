"""`genwright plan`: the best placement of a model over GPU memory, CPU memory and disk."""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from genwright.cli.app import Arch, Json, Source, new_app

if TYPE_CHECKING:
    from rich.text import Text

    from genwright.placement.machine import Machine
    from genwright.placement.planner import Budgets, Plan

app = new_app()
SMALL = 5_000_000  # bytes, too few to be named
WIDTH = 48  # characters of a full bar
COLOURS = {"weights": "cyan", "cache": "magenta", "activations": "yellow", "buffers": "blue"}


@app.command()
def plan(
    model: Source,
    prompt_length: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 512,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 32,
    batch: Annotated[
        int | None,
        typer.Option(min=1, max=1 << 30, help="The most sequences at a time; by default 64 on a CPU, 256 on a GPU."),
    ] = None,
    gpu_mem: Annotated[str | None, typer.Option(help="GPU memory to use: 16GiB, or a number of GB.")] = None,
    cpu_mem: Annotated[str | None, typer.Option(help="Main memory to use: 64GiB, or a number of GB.")] = None,
    disk: Annotated[Path | None, typer.Option(help="Folder on the disk to use; default: the cache folder.")] = None,
    quant: Annotated[str | None, typer.Option(help="Weight format; `genwright generate --help` lists them.")] = None,
    kv: Annotated[str, typer.Option(help="Format of the key-value cache: auto, int8 or int4.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, float16 or bfloat16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    arch: Arch = None,
    as_json: Json = False,
) -> None:
    """Find where a model's weights, cache and activations should be, and predict the speed.

    The machine is measured once. Pass the policy to `generate --offload`, or let `--offload auto` find one.
    """
    from genwright.device import pick_device
    from genwright.placement.footprint import Workload
    from genwright.text.build import open_model, plan_engine
    from genwright.text.memory import MAX_BATCH
    from genwright.text.settings import EngineConfig

    config = EngineConfig(
        device=device,
        dtype=dtype,
        quant=quant,
        kv=kv,
        arch=arch,
        gpu_mem=gpu_mem,
        cpu_mem=cpu_mem,
        offload_dir=None if disk is None else str(disk),
    )
    where = pick_device(config.device)
    work = Workload(prompt_length, max_new_tokens, batch or MAX_BATCH[where.type])
    found, budgets, machine = plan_engine(
        open_model(model, config), config, where, work, lambda line: print(line, file=sys.stderr, flush=True)
    )
    if as_json:
        print(json.dumps(to_json(found, budgets, machine)))
        return
    print("\n".join(sentences(found, machine)) + "\n")
    _print_picture(picture(found, budgets, machine))


def to_json(found: "Plan", budgets: "Budgets", machine: "Machine") -> dict[str, Any]:
    predicted = found.prediction
    rates = {name: getattr(predicted, name) for name in ("seconds", "prefill_rate", "decode_rate", "total_rate")}
    return {
        "resident": found.policy.resident,
        "offload": None if found.policy.resident else str(found.policy),
        "policy": asdict(found.policy),
        "prediction": {**asdict(predicted), **rates},
        "bytes": found.parts,
        "budgets": asdict(budgets),
        "machine": asdict(machine),
    }


def sentences(found: "Plan", machine: "Machine") -> Iterator[str]:
    """The policy, the prediction and what limits it."""
    from genwright.placement.prediction import readable

    policy, predicted = found.policy, found.prediction
    sequences = f"{predicted.sequences} sequence{'s' if predicted.sequences > 1 else ''}"
    if policy.resident:
        yield f"The model fits: it runs resident, with {sequences} at a time."
    else:
        yield f"Policy: {policy.describe('GPU' if machine.has_gpu else 'memory')}"
        yield f"        --offload {policy}"
    yield (
        f"Prediction for {sequences}, {predicted.prompt_length}+{predicted.max_new_tokens} tokens: prefill "
        f"{readable(predicted.prefill_rate)} tok/s, decode {readable(predicted.decode_rate)} tok/s, total "
        f"{readable(predicted.total_rate)} tok/s, {readable(predicted.seconds)} s"
    )
    yield f"Limits: {predicted.prefill_limit} for prefill, {predicted.decode_limit} for decoding"


def picture(found: "Plan", budgets: "Budgets", machine: "Machine") -> Iterator[tuple[str, Mapping[str, int], int]]:
    """Each tier's name, the bytes of what is in it, and its budget; without a GPU there is one kind of memory."""
    parts = found.parts
    if machine.has_gpu:
        yield "GPU", parts["gpu"], budgets.gpu
        yield "CPU", parts["cpu"], budgets.cpu
    else:
        yield "memory", {what: size + parts["cpu"][what] for what, size in parts["gpu"].items()}, budgets.cpu
    if any(parts["disk"].values()):
        yield "disk", parts["disk"], budgets.disk


def _print_picture(tiers: Iterator[tuple[str, Mapping[str, int], int]]) -> None:
    """One bar per tier, in colours on a terminal and in letters elsewhere."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    for name, parts, budget in tiers:
        held = ", ".join(f"{what} {size / 1e9:,.2f}" for what, size in parts.items() if size > SMALL)
        line = bar(parts, budget, letters=not console.is_terminal)
        note = f"  {sum(parts.values()) / 1e9:,.2f} of {budget / 1e9:,.2f} GB"
        console.print(f"{name:<7}", line, note, f": {held}" if held else "", sep="", soft_wrap=True)


def bar(parts: Mapping[str, int], budget: int, letters: bool) -> "Text":
    """What a tier holds, as parts of its budget."""
    from rich.text import Text

    shown, filled, done = Text(), 0, 0
    for what, size in parts.items():
        done += size
        end = min(round(WIDTH * done / max(budget, 1)), WIDTH)
        shown.append((what[0].upper() if letters else "█") * (end - filled), style=COLOURS[what])
        filled = end
    return shown.append(("." if letters else "░") * (WIDTH - filled), style="dim")
