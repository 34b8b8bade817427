"""A script's steps, and the part of it that needs no model."""

from pathlib import Path

from fixture_cases import PROJECT

from genwright.inspect.analysis.manifest import load_manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.analysis.scenario import Scenario
from genwright.inspect.report.flowchart import clip, draw
from genwright.inspect.report.model_free import handed_over, plain_functions
from genwright.inspect.report.steps import steps
from genwright.inspect.report.suggestions import suggestions
from genwright.inspect.rewrite.rewrite import Rewrite, rewrite

SCRIPT = """import argparse, pickle, sys
import cv2
from tinymodel import Model, generate

def read(path):
    with open(path) as file:
        return file.read()

def decode(model, text):
    try:
        return model.generate(text)
    except:
        return ""

def show(text, size: int) -> str:
    cv2.imshow("window", text)
    return text

def main(args):
    text = read(args.path)
    for _ in range(2):
        line = text + input("? ")
        model = Model("weights.bin").to("cuda")
        answer = decode(model, line)
    pickle.load(open("state.pkl", "rb"))
    with open("out.txt", "w") as out:
        out.write(show(answer, 1))

def handler(question):
    return generate(question, 1)

parser = argparse.ArgumentParser()
parser.add_argument("--path", default="in.txt")
arguments = parser.parse_args()
main(arguments)
"""


def made(folder: Path, source: str = SCRIPT) -> Rewrite:
    script = folder / "script.py"
    script.write_text(source)
    return rewrite(script, load_manifest(PROJECT / "tinymodel.toml"), Scenario(), Repository(folder))


def test_steps_in_the_order_of_their_calls(tmp_path: Path) -> None:
    found = {s.name: s for s in steps(made(tmp_path).analysis)}
    assert list(found) == ["", "main", "read", "decode", "show", "handler"]
    assert [i.text for i in found[""].reads] == ["--path"] and [i.text for i in found["read"].reads] == ["path"]
    assert [(i.kind, i.line) for i in found["main"].reads] == [("keyboard", 22), ("file", 25)]
    assert [i.text for i in found["main"].writes] == ["'out.txt'"]
    assert [i.kind for i in found["show"].writes] == ["window"]
    assert [s.interface.name for s in found["decode"].crossings] == ["Model.generate"]
    assert [s.interface.name for s in found["handler"].crossings] == ["generate"]


def test_what_needs_no_model(tmp_path: Path) -> None:
    analysis = made(tmp_path).analysis
    told = [(f.name, f.takes, f.gives) for f in plain_functions(analysis)]
    assert told == [("read", "path", "file.read()"), ("show", "text, size: int", "str")]
    given = {(a.interface, a.parameter): a for a in handed_over(analysis)}
    prompt = given["Model.generate", "prompt"]
    # Backwards from the argument: the call of its function, what that was given, and where that came from.
    assert [line for line, _ in prompt.made_by] == [20, 22, 24, 32, 34, 35]
    assert prompt.made_by[1] == (22, 'line = text + input("? ")')
    assert given["Model", "path"].made_by == []


def test_suggestions(tmp_path: Path) -> None:
    told = [(s.key, s.line) for s in suggestions(made(tmp_path))]
    assert told == [
        ("give_answers", 22),
        ("set_seed", 0),
        ("narrow_except", 12),
        ("choose_device", 23),
        ("unpickle", 25),
    ]
    other = "import torch\nfrom tinymodel import generate\ntorch.manual_seed(1)\n"
    other += 'x = torch.load("m.pt", weights_only=False)\nd = "cuda" if torch.cuda.is_available() else "cpu"\n'
    other += (
        'print(f"{generate(\'a\')}")\ngenerate("b", 1)\nm = AutoModel.from_pretrained("x", trust_remote_code=True)\n'
    )
    told = [(s.key, s.line) for s in suggestions(made(tmp_path, other))]
    assert told == [("resolve", 6), ("unpickle", 4), ("add_guard", 7), ("pin_revision", 8)]


def test_the_picture_is_laid_out_without_overlaps(tmp_path: Path) -> None:
    kinds = {k: k for k in ("options", "keyboard", "file", "window", "page")}
    picture = draw(steps(made(tmp_path).analysis), "top", kinds)
    for index, a in enumerate(picture.boxes):
        assert a.x >= 0 and a.x + a.width <= picture.width and a.y + a.height <= picture.height
        for b in picture.boxes[index + 1 :]:
            apart = a.x + a.width <= b.x or b.x + b.width <= a.x or a.y + a.height <= b.y or b.y + b.height <= a.y
            assert apart, (a, b)
    assert [b.text for b in picture.boxes if b.kind == "model"] == [
        "Model : 23",
        "Model.generate : 11",
        "generate : 30",
    ]
    many = made(
        tmp_path, "from tinymodel import generate\n" + "".join(f"def f{i}(): generate('a')\n" for i in range(50))
    )
    assert draw(steps(many.analysis), "top", kinds).left_out == 10


def test_texts_are_clipped_by_their_width() -> None:
    assert clip("a  b\nc", 9) == "a b c" and clip("abcdef", 5) == "abcd…"
    assert clip("工作流程图", 6) == "工作…" and clip("工作", 4) == "工作"
