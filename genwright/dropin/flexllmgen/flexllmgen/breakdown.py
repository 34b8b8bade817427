"""FlexLLMGen's breakdown of a run: the mean seconds of moving and of computing a layer."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from genwright.placement.tiers import DECODING, PREFILL
from genwright.text.engine.streamed import StreamedExecutor
from genwright.text.llm import LLM


@contextmanager
def measured_moves(llm: LLM, wanted: bool) -> Iterator[Mapping[str, float]]:
    """The seconds of each kind of move and stage inside the `with`, if they are wanted; none for a resident model."""
    executor, seconds = llm.engine.executor, dict[str, float]()
    if not (wanted and isinstance(executor, StreamedExecutor)):
        yield seconds
        return
    executor.tiers.seconds = seconds
    try:
        yield seconds
    finally:
        executor.tiers.seconds = None


def print_breakdown(
    costs: Sequence[float], moves: Mapping[str, float], layers: int, batches: int, gen_len: int
) -> None:
    """`costs` are the seconds of each step; those that no move took are the layers' own."""
    each = layers * batches
    print(f"#layers: {layers}")
    print(f"#batches prefill:  {each}")
    print(f"#batches decoding: {(gen_len - 1) * each}")
    loads = sum(moves.get(f"load_weight_{stage}", 0.0) for stage in (PREFILL, DECODING))
    print(f"load_weight            (per-layer): {loads / layers / len(costs):.6f} s")
    for stage, steps in ((PREFILL, costs[:1]), (DECODING, costs[1:])):
        parts = {part: moves.get(f"{part}_{stage}", 0.0) for part in ("load_cache", "store_cache")}
        moved = moves.get(f"load_weight_{stage}", 0.0) + sum(parts.values())
        parts["compute_layer"] = max(sum(steps) - moved, 0.0)
        for part, seconds in parts.items():
            print(f"{f'{part}_{stage}':22s} (per-batch): {seconds / each / max(len(steps), 1):.6f} s")
