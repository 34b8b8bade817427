"""The calls of a script that lead to its model are found by what the called code does."""

from pathlib import Path

import pytest
from fixture_cases import PROJECT

from genwright.errors import UserError
from genwright.inspect.analysis.border import draft_for_script
from genwright.inspect.analysis.repository import Repository


def drafted(folder: Path, files: dict[str, str], script: str = "run.py") -> list[str]:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    path = folder / script
    manifest = draft_for_script(Repository(folder), path, path.read_text())
    return sorted(i.name for i in manifest.interfaces)


@pytest.mark.parametrize(
    ("script", "names"),
    [
        ("class_object.py", ["Model", "Model.__call__", "Model.generate"]),
        ("argparse_options.py", ["generate"]),
        ("rebinds_globals.py", ["sample"]),
    ],
)
def test_a_script_gets_the_interfaces_it_crosses(script: str, names: list[str]) -> None:
    path = PROJECT / script
    manifest = draft_for_script(Repository(PROJECT), path, path.read_text())
    assert sorted(i.name for i in manifest.interfaces) == names


NET = """
import torch
class Base(torch.nn.Module):
    def colour(self, x):
        with torch.no_grad():
            return self.forward(x)
class Net(Base):
    def forward(self, x):
        return x
def tidy(text):
    return text.strip()
def build(path):
    net = Net()
    net.load_state_dict(torch.load(path))
    return net
"""


def test_names_do_not_matter(tmp_path: Path) -> None:
    text = "from pack.net import Net, tidy\nn = Net()\nprint(n.colour(tidy(' a ')))\n"
    assert drafted(tmp_path, {"pack/net.py": NET, "run.py": text}) == ["Net", "Net.colour"]


@pytest.mark.parametrize("folder", ["src/pack", "src/python/pack", "libs/one/src/pack", "pack"])
def test_layouts(tmp_path: Path, folder: str) -> None:
    files = {f"{folder}/net.py": NET, "run.py": "import pack.net as p\nn = p.Net()\nprint(n(1))\n"}
    assert drafted(tmp_path, files) == ["Net", "Net.__call__"]


def test_a_package_re_exports_at_any_depth(tmp_path: Path) -> None:
    files = {"pack/__init__.py": "from .deep import *", "pack/deep/__init__.py": "from .net import Net"}
    text = "from pack import Net\nn = Net()\nprint(n.colour(1))\n"
    assert drafted(tmp_path, files | {"pack/deep/net.py": NET, "run.py": text}) == ["Net", "Net.colour"]


def test_a_main_does_not_swallow_the_call_inside(tmp_path: Path) -> None:
    text = "from pack.net import build\ndef generate():\n    n = build('w')\n    print(n(1))\ngenerate()\n"
    assert "Net.__call__" in drafted(tmp_path, {"pack/net.py": NET, "run.py": text})
    assert "generate" not in drafted(tmp_path, {"pack/net.py": NET, "run.py": text})


def test_methods_of_the_script_count(tmp_path: Path) -> None:
    text = (
        NET + "class Talker:\n    def __init__(self): self.net = build('w')\n    def say(self, x): return self.net(x)\n"
    )
    assert drafted(tmp_path, {"run.py": text + "t = Talker()\nprint(t.say(1))\n"}) == ["Talker", "Talker.say"]


def test_the_authors_inference_function_is_the_border(tmp_path: Path) -> None:
    text = "import torch\nfrom pack.net import Net\n@torch.no_grad()\ndef sample(n, x):\n    return n(x)\n"
    text += "print(sample(Net(), 1))\n"
    assert drafted(tmp_path, {"pack/net.py": NET, "run.py": text}) == ["sample"]


STATIC = """
    @staticmethod
    def still(x):
        return network(x)
    @classmethod
    def klass(cls, x):
        return network(x)
"""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("from pack.net import Net as N\nn = N()\nprint(n(1))", ["Net", "Net.__call__"]),
        ("from pack.net import Net\nprint(Net.still(1))", ["Net", "Net.still"]),
        ("from pack.net import Net\nprint(Net.klass(1))", ["Net", "Net.klass"]),
        ("from pack.net import Net\nclass My(Net): ...\nm = My()\nprint(m.colour(1))", ["My", "My.colour"]),
        ("from pack.net import Net\nclass My(Net):\n    def go(self, x): return super().colour(x)\nprint(My().go(1))",
         ["Net", "Net.colour"]),
        ("import torch\nfrom pack.net import Net\nm = torch.compile(Net())\nprint(m(1))", ["Net", "Net.__call__"]),
        ("import torch.nn as nn\nfrom pack.net import Net\nm = nn.DataParallel(Net())\nprint(m.module.colour(1))",
         ["Net", "Net.colour"]),
        ("from accelerate import Accelerator\nfrom pack.net import Net\na = Accelerator()\nm = a.prepare(Net())\n"
         "print(m(1))", ["Net", "Net.__call__"]),
        ("from pack.made import make\nm = make('a')\nprint(m(1))", ["Net", "Net.__call__"]),
        ("from pack.net import Net\nd = {'a': Net}\nn = d['a']()\nprint(n(1))", ["Net", "Net.__call__"]),
    ],
)  # fmt: skip
def test_ways_to_the_model(tmp_path: Path, text: str, names: list[str]) -> None:
    head, tail = NET.split("def tidy")
    files = {"pack/net.py": f"{head}{STATIC}def tidy{tail}", "run.py": text}
    assert drafted(tmp_path, files | {"pack/made.py": "from pack.net import Net\ndef make(p): return Net()\n"}) == names


def test_a_call_through_a_container_is_found(tmp_path: Path) -> None:
    files = {"pack/net.py": NET, "run.py": "from pack.net import tidy\nd = {'a': tidy}\nprint(d['a'](1))\n"}
    assert drafted(tmp_path, files) == ["tidy"]


def test_what_is_nearest_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        drafted(tmp_path, {"run.py": "def tidy(x): return x\nprint(tidy(1))\n"})
    assert "nearest are tidy (it is given inputs, its result is used)" in str(error.value)
    with pytest.raises(UserError, match="calls nothing that its repository defines"):
        drafted(tmp_path, {"run.py": "print(1)\n"})
