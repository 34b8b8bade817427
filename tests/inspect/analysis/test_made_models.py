"""A model whose class nothing tells is known by its loader, or by what the script does with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixture_cases import ROOT

from genwright.errors import UserError
from genwright.inspect.analysis.border import draft_for_script
from genwright.inspect.analysis.manifest import load_manifest
from genwright.inspect.analysis.repository import Repository
from genwright.inspect.rewrite.rewrite import rewrite


def drafted(folder: Path, text: str) -> list[str]:
    script = folder / "run.py"
    script.write_text(text)
    return sorted(i.name for i in draft_for_script(Repository(folder), script, text).interfaces)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("from transformers import AutoModel\nm = AutoModel.from_pretrained('a').half().cuda()\nprint(m.chat(1))",
         ["AutoModel", "AutoModel.chat"]),
        ("from onnxruntime import InferenceSession\ns = InferenceSession('a')\nprint(s.run(None, {}))",
         ["InferenceSession", "InferenceSession.run"]),
        ("import zoo\nm = zoo.make('a')\nm.eval()\nprint(m(1))", ["make", "make.__call__"]),
        ("import zoo\nm = zoo.make('a')\nm.cuda()\nprint(m(1))", ["make", "make.__call__"]),
        ("import zoo\nm = zoo.Maker.make('a')\nm.requires_grad_(False)\nprint(m.fold(1))", ["Maker", "Maker.fold"]),
        ("import zoo\nm, tidy = zoo.make('a')\nm.eval()\nprint(m(tidy(1)))", ["make_0", "make_0.__call__"]),
        ("import torch\nm = torch.load('a')['model']\nm.cuda().eval()\nprint(m.fold(1))",
         ["load_model", "load_model.fold"]),
        ("import zoo\ndef f():\n    a, b = zoo.make()\n    return b\nms = f()\nm = ms[n]\nm.cuda()\nprint(m.fold(1))",
         ["make_1", "make_1.fold"]),
        ("from vllm import LLM\nllm = LLM('a')\nprint(llm.generate('x'))", ["LLM", "LLM.generate"]),
        ("import zoo\nm = zoo.make('a').eval()\nm.load_state_dict({})\nm.set_size(3)\nprint(m.fold(1), m.config())",
         ["make", "make.fold"]),
    ],
)  # fmt: skip
def test_models_of_libraries(tmp_path: Path, text: str, names: list[str]) -> None:
    assert drafted(tmp_path, text) == names


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nx = torch.from_numpy(1).cuda()\nprint(x.reshape(2))",  # a tensor
        "from transformers import AutoTokenizer\nt = AutoTokenizer.from_pretrained('a')\nprint(t.encode('x'))",
        "import zoo\nm = zoo.make('a')\nm.eval()\nm.save('x')",  # nothing is computed
        "import multiprocessing as mp\npipe = mp.Pipe()\npipe.send(1)",  # Python's own
    ],
)
def test_no_models(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="looks like one of a model"):
        drafted(tmp_path, text)


def test_the_scripts_own_function_around_it_is_the_border(tmp_path: Path) -> None:
    text = "import zoo\nm = zoo.make('a').eval()\ndef ask(model, x):\n    return model.generate(x)\nprint(ask(m, 1))\n"
    assert drafted(tmp_path, text) == ["ask"]
    assert drafted(tmp_path, text.replace("return ", "")) == ["make", "make.generate"]


def test_a_model_is_named_by_its_class_and_not_by_its_wrapper(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n    def forward(self, x): return self.layer(x)\n"
    )
    text = "import zoo\nfrom net import Net\nm = Net()\nif zoo.several:\n    m = zoo.Around(m)\nm.eval()\nprint(m(1))\n"
    assert drafted(tmp_path, text) == ["Net", "Net.__call__"]
    text = "import zoo\nm = zoo.make()\nif zoo.several:\n    m = zoo.around(m)\nm.eval()\nprint(m(1))\n"
    assert drafted(tmp_path, text) == ["make", "make.__call__"]


LIBRARY = """
class _Real:
    def eval(self): return self
    def answer(self, text): return text.upper()
class Auto:
    @classmethod
    def from_pretrained(cls, name): return _Real()
def load(name): return _Real(), str.strip
"""


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("import zoo\nm = zoo.Auto.from_pretrained('a').eval()\nprint(m.answer('yes'))\n", 2),
        ("import zoo\nm, tidy = zoo.load('a')\nm.eval()\nprint(m.answer(tidy(' yes')))\n", 1),
    ],
)
def test_a_rewrite_runs(tmp_path: Path, text: str, calls: int) -> None:
    """A library may give an object of another class than the one that it is asked for, or several."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "zoo.py").write_text(LIBRARY)
    (tmp_path / "repo").mkdir()
    script = tmp_path / "repo" / "run.py"
    script.write_text(text)
    repository = Repository(script.parent)
    (tmp_path / "manifest.toml").write_text(draft_for_script(repository, script, text).to_toml())
    made = rewrite(script, load_manifest(tmp_path / "manifest.toml"), repository=repository)
    (tmp_path / "rewritten.py").write_text(made.text)
    paths = os.pathsep.join([str(ROOT), str(tmp_path / "library")])
    environment = os.environ | {"PYTHONPATH": paths, "GENWRIGHT_RECORDS": str(tmp_path / "records")}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "rewritten.py")], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "YES\n", done.stderr
    assert len(list((tmp_path / "records").rglob("calls/*.json"))) == calls
