"""A Chrome trace of one call, and its most expensive operations."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, _ExperimentalConfig, profile

from genwright.errors import UserError

MOST = 10  # operations listed


def profiled(run: Callable[[], object], path: Path) -> str:
    """Run a function under the profiler, write the trace, and list the most expensive operations."""
    if not path.parent.is_dir():
        raise UserError(f"There is no folder {path.parent} for the trace {path.name}.")
    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    everywhere = _ExperimentalConfig(profile_all_threads=True)  # the engine has a thread of its own
    with profile(activities=activities, experimental_config=everywhere) as trace:
        run()
    trace.export_chrome_trace(str(path))
    kind = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    entries = sorted(trace.key_averages(), key=lambda entry: getattr(entry, kind), reverse=True)
    whole = sum(getattr(entry, kind) for entry in entries) or 1
    lines = [f"{'ms':>10}  {'share':>6}  {'calls':>8}  operation"]
    for entry in entries[:MOST]:
        spent = getattr(entry, kind)
        lines.append(f"{spent / 1e3:10.2f}  {spent / whole:6.1%}  {entry.count:8}  {entry.key[:70]}")
    return "\n".join([*lines, f"The trace is in {path}."])
