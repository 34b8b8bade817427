"""What a hostile script makes the analysis compute stays small: in memory, in steps, and in files."""

import ast
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from call_count import calls
from fixture_cases import ROOT

from genwright.inspect.analysis.cli_interpreter import CliInterpreter
from genwright.inspect.analysis.interfaces import rank
from genwright.inspect.analysis.interpreter_limits import LARGEST, weight
from genwright.inspect.analysis.interpreter_values import Unknown
from genwright.inspect.analysis.manifest import parse_manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.rewrite.rewrite import rewrite

HOSTILE = {
    "doubled text": "a = 'x'\n" + "a = a + a\n" * 60,
    "nested lists": "a = [1]\n" + "a = [a] * 1000\n" * 20,
    "nested dicts": "a = {}\n" + "a = {1: a, 2: a}\n" * 60,
    "stored dicts": "a = {}\n" + "b = {}\nb[1] = a\nb[2] = a\na = b\n" * 60,
    "squared": "a = 3\n" + "a = a * a\n" * 60,
    "extended": "a = [1]\n" + "a.extend(a)\n" * 60,
    "appended to itself": "a = []\n" + "a.append(a)\na.append(a)\n" * 60,
    "range": "a = list(range(1000000000))",
    "sum of a range": "a = sum(range(1000000000000))",
    "loops": "for i in range(10000):\n    for j in range(10000):\n        a = [i, j]\na = [a + a] * 100000",
    "a width": "a = '%1000000000d' % 1",
    "a star": "a = '%*d' % (1000000000, 1)",
    "a format": "a = '{:>1000000000}'.format(1)",
    "replaced": "a = 'a' * 1000\na = a.replace('a', a)\na = a.replace('a', a)",
    "joined": "a = ['a' * 1000] * 10\na = a[0].join(a * 1000)",
    "paths": "from pathlib import Path\na = Path('a')\n" + "a = a / a\n" * 60,
    "recursion": "def f(n):\n    return f(n) + f(n)\na = f(1)",
    "parser usage": "import argparse\np = argparse.ArgumentParser(usage='%(prog)1000000000s')\na = p.add_subparsers()",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_constants_are_computed_within_limits(name: str) -> None:
    tree = ast.parse(HOSTILE[name])
    tracemalloc.start()
    evaluator = CliInterpreter(tree, None, None)
    value = evaluator.value(ast.parse("a", mode="eval").body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30e6 and (isinstance(value, Unknown) or weight(value) <= LARGEST)


def test_weights() -> None:
    assert weight("abc") == 4 and weight(1 << 800) == 101 and weight([1, [2, 3], {"a": 4}]) == 9
    cycle: list = []
    cycle.append(cycle)
    assert weight(cycle) > LARGEST and weight(range(10**30)) > LARGEST


MANIFEST = parse_manifest({"project": "p", "interface": [{"name": "generate", "signature": "(x, n=1)"}]}, "")
MANY = {
    "others": ("from model import generate\ngenerate(1)\n", "print(f(1), 2)\n"),
    "sites": ("from model import generate\n", "generate(1)\n"),
    "one function": ("from model import generate\ndef main():\n    pass\n", "    generate(1)\n"),
    "own functions": ("from model import generate\ndef f(x):\n    return generate(x)\n", "y = f(1)\n"),
    "methods": ("class A:\n    def f(self, x):\n        return generate(x)\na = A()\n", "y = a.f(1)\n"),
    "redefined": ("from model import generate\n", "def f(x):\n    return generate(x)\nf(1)\n"),
    "one name": ("from model import generate\n", "def f(x):\n    return x\nf(1)\n"),
    "functions": ("from model import generate\n", "def f_#(x):\n    return x\nf_#(1)\n"),
    "definitions": ("from model import generate\n", "def f_#():\n    return generate(1)\n"),
    "objects": ("from model import generate\nclass A: ...\n", "a_# = A()\na_#.f(generate(1))\n"),
}


def many(head: str, line: str, count: int) -> str:
    return head + "".join(line.replace("#", str(number)) for number in range(count))


@pytest.mark.parametrize("name", MANY)
def test_work_grows_with_the_number_of_calls(name: str, tmp_path: Path) -> None:
    head, line = MANY[name]

    def work(count: int) -> int:
        script = tmp_path / f"script_{count}.py"
        script.write_text(many(head, line, count))
        return calls(lambda: rewrite(script, MANIFEST, repository=Repository(tmp_path)).untouched)

    assert work(400) < 2.6 * work(200)


def test_work_grows_with_the_number_of_files(tmp_path: Path) -> None:
    def work(count: int) -> int:
        folder = tmp_path / str(count)
        folder.mkdir()
        for number in range(count):
            text = f"def run_{number}(x): return x\nclass M{number}:\n    def f(self): ...\nrun_{number}(M{number}())"
            (folder / f"m{number}.py").write_text(text)
        return calls(rank, Repository(folder))

    assert work(200) < 2.4 * work(100)


FULL = pytest.mark.skipif(os.environ.get("GENWRIGHT_FULL_SIZE") != "1", reason="GENWRIGHT_FULL_SIZE=1 runs full sizes")


def command(folder: Path, *arguments: str) -> tuple[int, str, float, float]:
    """The whole command in a process of its own: its exit code and stderr, seconds of CPU and megabytes."""
    said = folder / "stderr.txt"
    with said.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "genwright", "inspect", *arguments],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
        _, status, used = os.wait4(process.pid, 0)
    return os.waitstatus_to_exitcode(status), said.read_text(), used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


@FULL
def test_hostile_inputs_in_seconds_and_megabytes(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text('project = "p"\n[[interface]]\nname = "generate"\nsignature = "(x, n=1)"\n')
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "fifo.py")
    for name in ("zero.py", "fifo.py"):
        code, said, seconds, megabytes = command(tmp_path, "rewrite", name, "--manifest", "m.toml")
        assert code == 1 and said.count("\n") == 1 and seconds < 2 and megabytes < 300
    for text in HOSTILE.values():
        (tmp_path / "script.py").write_text(
            f"import argparse\nfrom model import generate\n{text}\np = argparse.ArgumentParser()\n"
            "p.add_argument('--a', default=a)\ngenerate(p.parse_args().a)\n"
        )
        code, _, seconds, megabytes = command(tmp_path, "rewrite", "script.py", "--manifest", "m.toml")
        assert code == 0 and seconds < 2 and megabytes < 300, text
    for name, (head, line) in MANY.items():
        # As many lines as make 20,000 calls; a definition's brackets are no call's.
        (tmp_path / "script.py").write_text(many(head, line, 20_000 // (line.count("(") - line.count("def "))))
        code, said, seconds, _ = command(tmp_path, "rewrite", "script.py", "--manifest", "m.toml")
        # A script that calls no interface is refused in one sentence.
        assert (code == 0 or (name in ("one name", "functions") and said.count("\n") == 1)) and seconds < 10, line
    lines = "from hub import Net\nmodel = Net.from_pretrained('a')\n" + "model.generate(1)\n" * 20_000
    (tmp_path / "script.py").write_text(lines)
    code, _, seconds, _ = command(tmp_path, "rewrite", "script.py")  # drafted
    assert code == 0 and seconds < 10


@FULL
def test_drafting_a_large_repository(tmp_path: Path) -> None:
    for number in range(3000):
        folder = tmp_path / f"pkg{number // 100}"
        folder.mkdir(exist_ok=True)
        body = "".join(
            f"def generate_{number}_{k}(model, prompt, n=1):\n    y = model.encode(prompt)\n    return model(y, n)\n"
            for k in range(20)
        )
        (folder / f"m{number}.py").write_text(f"{body}class Model{number}:\n    def predict(self, x): return x\n")
    (tmp_path / "main.py").write_text("from pkg0.m0 import generate_0_0\nprint(generate_0_0(1, 2))\n")
    code, _, seconds, megabytes = command(tmp_path, "interfaces", ".")
    assert code == 0 and seconds < 15 and megabytes < 300
