"""How many GPUs the named shapes need, and what a step of decoding over them should cost, for docs/scaling.md.

Run in the repository's root: `python benchmarks/scaling.py`. Nothing is loaded; the bytes of each rank are those that
the loader would load. The rates are assumptions, named in `LINKS`, and not measured over several GPUs.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from genwright.errors import UserError
from genwright.parallel.layout import Layout
from genwright.quant.formats import parse_format
from genwright.text.checkpoints.open import open_checkpoint
from genwright.text.loader import Loader

GPUS = {"H100 (80 GB)": 80e9 * 0.9, "H200 (141 GB)": 141e9 * 0.9}  # bytes that may be used
NODE = 8  # GPUs with a fast link between them
SEQUENCES, CONTEXT = 16, 8192  # whose cache must fit beside the weights; fewer tokens if the model's context is shorter
SHAPES = {
    "llama-3.1-8b": ("bfloat16", "int4"),
    "llama-3.1-70b": ("bfloat16", "int8", "int4"),
    "llama-3.1-405b": ("bfloat16", "fp8", "int4"),
    "mixtral-8x22b": ("bfloat16", "int8", "int4"),
    "qwen3-235b-a22b": ("bfloat16", "fp8", "int4"),
    "opt-175b": ("bfloat16", "int8", "int4"),
    "deepseek-v3": ("fp8",),
}


@dataclass(frozen=True)
class Link:
    """Between ranks: bytes per second of one of them, and the seconds of an all-reduce of nothing."""

    bandwidth: float
    latency: float


MEMORY = 4.8e12 * 0.75  # bytes per second that weights and cache are read at: an H200's, and the share that is reached
LINKS = {"node": Link(450e9 * 0.8, 12e-6), "network": Link(50e9 * 0.8, 40e-6)}  # NVLink 4; InfiniBand of 400 Gb/s


def loader(shape: str, form: str, layout: Layout, rank: int = 0) -> Loader:
    """The loader of one rank's part."""
    checkpoint = open_checkpoint(f"random:{shape}")
    quant = None if form == "bfloat16" else parse_format(form)
    layers = layout.layers(rank, checkpoint.config.layers) if layout.pp > 1 else None
    return Loader(
        checkpoint,
        torch.bfloat16,
        torch.device("cpu"),
        quant=quant,
        rank=rank % layout.tp,
        ranks=layout.tp,
        expert_parallel=layout.expert_parallel,
        layers=layers,
    )


def rank_bytes(shape: str, form: str, layout: Layout) -> tuple[int, int]:
    """The most weights of a rank, and its cache of `SEQUENCES` sequences."""
    loaders = [loader(shape, form, layout, rank) for rank in range(0, layout.ranks, layout.tp)]
    spec = [each.cache_spec() for each in loaders]
    context = min(CONTEXT, loaders[0].checkpoint.config.max_context)
    cache = max(each.row_bytes * sum(map(len, each.stored)) for each in spec) * SEQUENCES * context
    return max(each.total_bytes() for each in loaders), cache


def layouts(shape: str) -> Iterator[Layout]:
    """From one GPU up: a node's GPUs share every layer, and nodes are pipeline stages."""
    experts = open_checkpoint(f"random:{shape}").config.moe is not None
    for ranks in (1, 2, 4, 8, 16, 24, 32):
        tp = min(ranks, NODE)
        yield Layout(tp, ranks // tp, experts and tp > 1)


def gpus_needed() -> Iterator[str]:
    yield f"| shape | weights | GB in all | {' | '.join(GPUS)} |"
    yield f"| --- | --- | ---: | {' | '.join('---:' for _ in GPUS)} |"
    for shape, forms in SHAPES.items():
        for form in forms:
            whole = rank_bytes(shape, form, Layout())[0]
            fits = [_first_fitting(shape, form, room) for room in GPUS.values()]
            yield f"| {shape} | {form} | {whole / 1e9:,.0f} | {' | '.join(fits)} |"


def _first_fitting(shape: str, form: str, room: float) -> str:
    for layout in layouts(shape):
        try:
            if sum(rank_bytes(shape, form, layout)) <= room:
                kind = "ep" if layout.expert_parallel else "tp"
                flags = [f"{kind} {layout.tp}"] * (layout.tp > 1) + [f"pp {layout.pp}"] * (layout.pp > 1)
                return f"{layout.ranks}" + (f" ({', '.join(flags)})" if flags else "")
        except UserError:
            continue  # the ranks cannot divide it
    return "more than 32"


@dataclass(frozen=True)
class StepCost:
    """A step of decoding: seconds of reading memory, of all-reduces, and of passing hidden states and logits on."""

    memory: float
    sums: float
    stages: float

    @property
    def total(self) -> float:
        return self.memory + self.sums + self.stages


def step_cost(shape: str, form: str, layout: Layout, batch: int) -> StepCost:
    """One token for each of `batch` sequences with CONTEXT tokens; stages run one after the other."""
    memory = sums = stages = 0.0
    link = LINKS["node" if layout.tp <= NODE else "network"]
    for rank in range(0, layout.ranks, layout.tp):
        each = loader(shape, form, layout, rank)
        cfg, spec = each.checkpoint.config, each.cache_spec()
        weights = each.total_bytes() - (each.bytes({"embed": each.weights.outer["embed"]}) if rank == 0 else 0)
        if cfg.moe is not None:
            blocks = [each.weights.block(layer) for layer in each.own_layers]
            experts = sum(each.bytes({n: s for n, s in block.items() if n.startswith("experts.")}) for block in blocks)
            weights -= int(experts * (1 - cfg.moe.top_k / cfg.moe.experts) ** batch)  # that no token chooses
        cache = spec.row_bytes * sum(map(len, spec.stored)) * batch * CONTEXT
        memory += (weights + cache) / MEMORY
        moved = 2 * (layout.tp - 1) / layout.tp * batch * cfg.dim * 2  # bytes of a ring's all-reduce in bfloat16
        sums += 2 * len(each.own_layers) * (link.latency + moved / link.bandwidth) * (layout.tp > 1)
        if layout.pp > 1:
            network, last = LINKS["network"], rank + layout.tp == layout.ranks
            size = batch * (cfg.vocab_size * 4 / layout.tp if last else cfg.dim * 2)
            stages += network.latency + size / network.bandwidth
    return StepCost(memory, sums, stages)


def deepseek_costs() -> Iterator[str]:
    yield "| GPUs | layout | batch | GB per rank | memory, ms | all-reduces, ms | stages, ms | step, ms | tokens/s |"
    yield "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    plans = (Layout(8, 1, True), Layout(8, 2, True), Layout(16, 1, True), Layout(8, 4, True), Layout(16, 2, True))
    for layout in plans:
        name = f"ep {layout.tp}" + f", pp {layout.pp}" * (layout.pp > 1)
        size = rank_bytes("deepseek-v3", "fp8", layout)[0] / 1e9
        for batch in (1, 32):
            cost = step_cost("deepseek-v3", "fp8", layout, batch)
            parts = " | ".join(f"{1000 * s:.1f}" for s in (cost.memory, cost.sums, cost.stages, cost.total))
            yield f"| {layout.ranks} | {name} | {batch} | {size:.0f} | {parts} | {batch / cost.total:,.0f} |"


if __name__ == "__main__":
    for line in (*gpus_needed(), "", *deepseek_costs()):
        print(line, flush=True)
