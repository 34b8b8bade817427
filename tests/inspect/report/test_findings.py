"""Each finding is triggered by a run that has it, with its line, and not by one that does not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_runs import record_run, write_run

from genwright.inspect.records.stored_runs import StoredRun
from genwright.inspect.records.summary import summarise
from genwright.inspect.report.findings import Finding, find

MODEL = {"generate": lambda prompt, **options: prompt}


def found(run: StoredRun, kind: str) -> list[Finding]:
    return [f for f in find(run) if f.kind == kind]


def run_of(tmp_path: Path, source: str, model: dict[str, Any] | None = None, **data: Any) -> StoredRun:
    return record_run(tmp_path / "records" / "demo" / "pre-0001", source, model or MODEL, **data)


@pytest.mark.parametrize(
    ("draw", "seed"),
    [
        ("import random\nx = random.random()", "import random\nrandom.seed(1)\nx = random.random()"),
        ("import numpy as np\nx = np.random.randn(2)", "import numpy as np\nnp.random.seed(0)\nx = np.random.randn(2)"),
        ("import numpy as np\nx = np.random.default_rng()", "import numpy as np\nx = np.random.default_rng(3)"),
        ("import torch\nx = torch.randn(2)", "import torch\ntorch.manual_seed(0)\nx = torch.randn(2)"),
        (
            "import torch\nx = torch.rand(1)",
            "import torch\nx = torch.rand(1, generator=torch.Generator().manual_seed(1))",
        ),
    ],
)
def test_unseeded_randomness(draw: str, seed: str, tmp_path: Path) -> None:
    call = "\nfrom themodel import generate\ngenerate('a')\n"
    (finding,) = found(run_of(tmp_path / "a", draw + call), "unseeded randomness")
    assert finding.line == 2
    assert not found(run_of(tmp_path / "b", seed + call), "unseeded randomness")


@pytest.mark.parametrize(
    ("draw", "is_seeded"),
    [
        ("torch.rand(2)", False),
        ("torch.rand(2, device='cpu')", False),
        ("torch.rand(2, device=torch.device('cpu'))", False),
        ("torch.rand(2, device='cuda')", True),
        ("torch.rand(2, device=torch.device('cuda', 0))", True),
        ("torch.rand(2, device=device)", True),
        ("torch.rand_like(x)", True),
    ],
)
def test_a_seed_of_cuda_is_one_for_draws_on_a_gpu(draw: str, is_seeded: bool, tmp_path: Path) -> None:
    # Not executed, for there may be no GPU.
    source = f"import torch\nfrom themodel import generate\ngenerate('a')\nif False:\n    {draw}\n"
    (finding,) = found(run_of(tmp_path / "a", source), "unseeded randomness")
    assert finding.line == 5 and finding.message.endswith("(torch.manual_seed would)")
    for seeder, holds in (("torch.cuda.manual_seed", is_seeded), ("torch.manual_seed", True)):
        seeded = found(run_of(tmp_path / seeder, f"{source}    {seeder}(0)\n"), "unseeded randomness")
        assert (not seeded) == holds


def test_draws_that_one_seed_would_make_repeatable_are_one_finding(tmp_path: Path) -> None:
    source = "import torch\nfrom themodel import generate\nx = torch.rand(1)\ngenerate('a')\ntorch.rand_like(x)\n"
    (finding,) = found(run_of(tmp_path, source), "unseeded randomness")
    assert finding.line == 3


OPTIONS = """
import argparse
from themodel import generate
parser = argparse.ArgumentParser()
parser.add_argument("--prompt", default="p")
parser.add_argument("--top-k", type=int, default=3)
parser.add_argument("--seen", default=1)
args = parser.parse_args()
def ask(prompt, tokens):
    return generate(prompt)
ask(args.prompt, getattr(args, "seen"))
"""


def test_argument_never_used(tmp_path: Path) -> None:
    option, parameter = found(run_of(tmp_path / "a", OPTIONS), "argument never used")
    assert (option.line, option.message) == (6, "the option --top-k is read by nothing")
    assert (parameter.line, parameter.message) == (9, "ask does not use its parameter tokens")
    used = OPTIONS.replace("generate(prompt)", "generate(prompt, n=tokens, k=args.top_k)")
    assert not found(run_of(tmp_path / "b", used), "argument never used")
    whole = OPTIONS.replace("ask(args", "dict(args)\nask(args").replace("(prompt)", "(prompt, n=tokens)")
    assert not found(run_of(tmp_path / "c", whole.replace("dict(args)", "vars(args)")), "argument never used")


SWALLOWED = """
from themodel import generate
for word in ("a", "bad"):
    try:
        generate(word)
    except {caught}:
        {body}
"""


def refuse(prompt: str) -> str:
    if prompt == "bad":
        raise ValueError("no such word")
    return prompt


def test_swallowed_exception(tmp_path: Path) -> None:
    hidden = SWALLOWED.format(caught="ValueError", body="pass")
    (finding,) = found(run_of(tmp_path / "a", hidden, {"generate": refuse}), "swallowed exception")
    assert (finding.line, finding.call) == (6, 2) and "no such word" in finding.message and "line 5" in finding.message
    # A broad handler is told even if nothing has failed.
    broad = SWALLOWED.format(caught="Exception", body="continue")
    (finding,) = found(run_of(tmp_path / "b", broad), "swallowed exception")
    assert finding.line == 6 and finding.call is None
    told = SWALLOWED.format(caught="Exception as error", body="print(error)")
    assert not found(run_of(tmp_path / "c", told, {"generate": refuse}), "swallowed exception")
    raised = SWALLOWED.format(caught="Exception", body="raise")
    assert not found(run_of(tmp_path / "d", raised, {"generate": refuse}), "swallowed exception")


def test_nan(tmp_path: Path) -> None:
    source = "from themodel import generate\ngenerate(1)\ngenerate(2)\n"

    def spoiled(x: int) -> Any:
        return {"logits": [float("nan")]} if x == 2 else 1.0

    (finding,) = found(run_of(tmp_path / "a", source, {"generate": spoiled}), "NaN")
    assert (finding.line, finding.call) == (3, 2)
    assert not found(run_of(tmp_path / "b", source), "NaN")


def test_nan_in_an_array(tmp_path: Path) -> None:
    calls = [{"interface": "f", "line": 4, "result": summarise(np.array([1.0, x]))} for x in (1.0, np.nan)]
    if "nan" not in calls[1]["result"]:
        calls[1]["result"] |= {"nan": 1}  # as summaries tell it
    (finding,) = found(write_run(tmp_path / "a", calls), "NaN")
    assert finding.call == 2 and "1 NaN" in finding.message


def test_file_written_outside(tmp_path: Path) -> None:
    run = tmp_path / "run"
    inside = [{"path": str(run / "work" / "a.txt"), "written": True}]
    outside = [{"path": str(tmp_path / "b.txt"), "written": True}, {"path": "/etc/hosts", "written": False}]
    calls = [{"interface": "f", "line": 2, "files": inside}, {"interface": "f", "line": 3, "files": outside}]
    (finding,) = found(write_run(run, calls), "file written outside")
    assert (finding.line, finding.call) == (3, 2) and "b.txt" in finding.message
    source = "from themodel import generate\nplace = '/tmp/log/out.txt'\ngenerate('a')\n"
    files = [{"path": "/tmp/log/out.txt", "outside": True}, {"path": "kept.txt", "outside": False}]
    (finding,) = found(run_of(tmp_path / "c", source, files=files), "file written outside")
    assert finding.line == 2


CACHED = ["/root/.cache/matplotlib/fontlist-v390.json", "/home/a/.triton/cache/x/k.so", "/home/a/.nv/ComputeCache/i"]


def test_what_libraries_keep_in_their_caches_is_no_finding(tmp_path: Path) -> None:
    source = "from themodel import generate\nplaces = ['matplotlib', {!r}]\ngenerate('a')\n"

    def lines(name: str, places: list[str], told: str) -> list[int | None]:
        files = [{"path": place, "outside": True} for place in places]
        run = run_of(tmp_path / name, source.format(told), files=files)
        return [f.line for f in found(run, "file written outside")]

    assert lines("cached", CACHED, "none") == []
    assert lines("named", CACHED, "~/.cache/matplotlib/fontlist-v390.json") == [2]
    # A line with the folder's name, or with a part of the file's, is not the one that writes.
    assert lines("elsewhere", ["/srv/matplotlib/fontlist.json"], "my-fontlist.json") == [None]


def memory(peaks: list[int]) -> list[dict[str, Any]]:
    return [{"interface": "f", "line": 7, "peak_memory": p << 20} for p in peaks]


def test_memory_growth(tmp_path: Path) -> None:
    (finding,) = found(write_run(tmp_path / "a", memory([100 + 10 * i for i in range(10)])), "memory growth")
    assert finding.line == 7
    # A start that allocates and then stays is no growth, nor is noise.
    assert not found(write_run(tmp_path / "b", memory([100, 300, *[500] * 8])), "memory growth")
    assert not found(write_run(tmp_path / "c", memory([500, 501, 499, 502, 500, 501])), "memory growth")


def test_slower_than_before(tmp_path: Path) -> None:
    folder = tmp_path / "records" / "demo"

    def timed(label: str, seconds: float, started: str, **data: Any) -> StoredRun:
        calls = [{"interface": "f", "line": 3, "seconds": seconds}] * 3
        return write_run(folder / label, calls, started=started, script="s.py", mode="intercept", **data)

    first = timed("pre-0001", 0.2, "2026-01-01T00:00:00")
    same = timed("pre-0002", 0.25, "2026-01-02T00:00:00")
    slow = timed("pre-0003", 0.9, "2026-01-03T00:00:00")
    other = timed("pre-0004", 9.0, "2026-01-04T00:00:00", argv=["--large"])
    (finding,) = found(slow, "slower than before")
    assert finding.line == 3 and "0.9 s" in finding.message
    assert not any(found(run, "slower than before") for run in (first, same, other))
