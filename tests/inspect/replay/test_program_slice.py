"""A slice gives the arguments of a recorded call, proved by running it where the model cannot be imported."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import record_run

from genwright.errors import UserError
from genwright.inspect.replay.program_slice import slice_call


def generate(prompt: Any, n: int = 1, **options: Any) -> Any:
    return f"<{prompt}>" * n


def embed(array: Any) -> Any:
    return array * 2


ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
MODEL = {"generate": generate, "embed": embed}

STRAIGHT = """
import json
import os
from themodel import generate

title = "not needed " * 3
count = 2
prompts = ["a", "b"]
prompts.append("c")
print(title)
first = generate(prompts[0], n=count)
os.environ["UNRELATED"] = title
second = generate(first + prompts[2])
print(second)
third = generate("after")
"""


def sliced(tmp_path: Path, source: str, number: int, **data: Any) -> str:
    run = record_run(tmp_path / "run", source, MODEL, **data)
    return slice_call(run, number).text


def test_only_what_decides_the_arguments_stays(tmp_path: Path) -> None:
    text = sliced(tmp_path, STRAIGHT, 2)
    assert "prompts.append('c')" in text and "title" not in text.partition("def ")[2].replace("title", "", 1)
    assert "json" not in text.partition("global")[2].partition("\n")[2]
    assert "sliced(11, 'generate')" in text and "after" not in text and "count = 2" not in text


CASES = {
    "loop": """
from themodel import generate
def ask(history, question):
    history.append(question)
    return generate(" ".join(history), n=len(history))
history = []
log = []
for i, question in enumerate(["x", "y", "z"]):
    if i == 1:
        continue
    answer = ask(history, question)
    log.append(answer)
    history.append(answer)
""",
    "class": """
from themodel import generate
class Chat:
    greeting = "hi"
    def __init__(self, name):
        self.name = name
        self.turns = 0
        self.unused = [1]
    def say(self, text):
        self.turns += 1
        return generate(f"{self.greeting} {self.name}: {text}", n=self.turns)
    def unused_method(self):
        self.unused.append(2)
def main():
    chat = Chat("Ann")
    for word in ("a", "b"):
        chat.say(word)
if __name__ == "__main__":
    main()
""",
    "argparse": """
import argparse, os
from themodel import generate
def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompt", default="p")
    parser.add_argument("--times", type=int, default=2)
    return parser.parse_args()
def main(args):
    out = "out"
    for i in range(args.times):
        text = generate(args.prompt + str(i) + os.path.basename(__file__))
        print(text, out)
main(parse())
""",
    "random": """
import random
import numpy as np
from themodel import embed, generate
random.seed(3)
rng = np.random.default_rng(5)
skipped = [random.random() for _ in range(4)]
noise = rng.normal(size=(2, 3))
print(len(skipped))
x = embed(noise)
y = embed(x + random.random())
generate(str(random.random()))
""",
    "globals": """
from themodel import generate
COUNT = 0
def count():
    global COUNT
    COUNT += 1
    return COUNT
class Settings:
    COUNT = COUNT
    start = "s"
def run(text):
    count()
    return generate(text + Settings.start, n=COUNT)
run("a")
count()
run("b")
""",
    "try": """
from themodel import generate
try:
    import surely_not_there
    have = True
except ImportError:
    have = False
name = "x"
if have:
    name = "never"
try:
    value = int("no number")
except ValueError:
    value = 7
generate(name, n=value)
""",
    "closure": """
from functools import partial
from themodel import generate
def twice(f):
    def inner(*args):
        return f(*args) + f(*args)
    return inner
@twice
def ask(text):
    return generate(text + suffix)
suffix = "!"
words = [w.upper() for w in "a b".split()]
list(map(ask, words))
last = lambda n: generate("last", n=n)
last(3)
""",
    "star": """
from os.path import *
from themodel import generate
data = {"a": [1]}
alias = data["a"]
alias += [2]
generate(basename("x/y"), n=len(data["a"]))
""",
    "while": """
from themodel import generate
text = "s"
rounds = 0
while True:
    text = generate(text)
    rounds += 1
    if rounds > 2:
        break
""",
    "keyboard": """
from themodel import generate
name = input("name? ")
age = input("age? ")
generate(age)
generate(name)
""",
}


@pytest.mark.parametrize("case", CASES)
def test_the_slice_of_a_call_gives_equal_arguments(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = iter(["Ann", "7"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(given))
    argv = ["--prompt", "q"] if case == "argparse" else []
    run = record_run(tmp_path / "run", CASES[case], MODEL, argv=argv, answers=["Ann", "7"])
    calls = list(run.calls())
    assert run.data["status"] == "ended"
    # `slice_call` runs the slice and compares its arguments with the record's, hash by hash.
    made = slice_call(run, calls[-1].number)
    assert made.kept < made.total  # it is the backward slice and not the whole script


def test_the_file_is_a_function_without_the_model(tmp_path: Path) -> None:
    run = record_run(tmp_path / "run", CASES["random"], MODEL)
    file = tmp_path / "slice.py"
    file.write_text(slice_call(run, 2).text)
    code = "import slice; args, kwargs = slice.arguments(); print(args[0].shape, args[0].sum().round(6), kwargs)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.stdout.startswith("(2, 3) ") and done.returncode == 0
    shown = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, env=ENVIRONMENT)
    assert json.loads(shown.stdout)["arguments"] == run.call(2).arguments


def test_what_no_record_holds_is_told(tmp_path: Path) -> None:
    source = "import random\nfrom themodel import generate\ngenerate(str(random.random()))\n"
    run = record_run(tmp_path / "run", source, MODEL)
    with pytest.raises(UserError, match="line 3 is given depends on something that no record holds"):
        slice_call(run, 1)
    with pytest.raises(UserError, match="no record 9"):
        slice_call(run, 9)
