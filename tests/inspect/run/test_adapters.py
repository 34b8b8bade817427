"""The names that generated scripts import: adapters of any manifest, folders that are made only when asked for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixture_cases import ROOT

from genwright.errors import UserError
from genwright.inspect.run.adapters import BaseAdapter, ExecutionResult

PAINT = """
import json
VERSION, _hidden = 3, 4
class Painter:
    def __init__(self, colour="red"): self.colour = colour
    def paint(self, name): return f"{self.colour} {name}"
    def unlisted(self): return "unlisted"
    @classmethod
    def blue(cls): return cls("blue")
class HousePainter(Painter): ...
def mix(a, b=1): return a + b
def beside(): return "beside"
"""
MANIFEST = """
project = "demo"
[[interface]]
name = "Painter.paint"
module = "paint"
[[interface]]
name = "Painter.blue"
module = "paint"
[[interface]]
name = "mix"
module = "paint"
"""


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    (folder / "paint.py").write_text(PAINT)
    (folder / "demo.toml").write_text(MANIFEST)
    (folder / "script.py").write_text(code)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "GENWRIGHT_HOME": str(folder / "home")}
    command = [sys.executable, "script.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def printed(folder: Path, code: str) -> list[str]:
    done = run(folder, code)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_star_import_brings_what_a_generated_adapter_brings(tmp_path: Path) -> None:
    code = """
from Inspection.core.executor import Executor
from Inspection.adapters.custom_adapters.demo import *
exe = Executor("demo", "simulation")
print(sys.argv[0], os.path.isdir(ENV_DIR), VERSION, json.dumps(1), mix(1), issubclass(CustomAdapter, BaseAdapter))
print(ENV_DIR, "_hidden" in globals(), ExecutionResult().fuc_name == "")
"""
    first, second = printed(tmp_path, code)
    assert first == "script.py True 3 1 2 True"
    assert second == f"{tmp_path / 'home' / 'environments' / 'demo'}/ False True"


def test_an_executor_runs_what_generated_scripts_name(tmp_path: Path) -> None:
    code = """
from Inspection.core.executor import Executor
exe = Executor("demo", "simulation")
print(exe.run("mix", a=1), exe.run("beside"), exe.run("blue").colour)
green = exe.create_interface_objects(colour="green")
print(exe.run("paint", name="a"), exe.run("Painter_paint", name="b"), exe.run("unlisted"))
print(exe.adapter.painter is green, exe.adapter.model is green, exe.adapter.result.interface_return)
import paint
exe.adapter.class1_obj = paint.HousePainter("grey")
print(exe.run("paint", name="c"))
print((exe.now_record_path + "a.txt").endswith("simulation-0001/a.txt"), (exe.now_record_path / "a").name)
"""
    assert printed(tmp_path, code) == [
        "2 beside blue",
        "green a green b unlisted",
        "True True unlisted",
        "grey c",
        "True a",
    ]


def test_an_adapter_by_itself(tmp_path: Path) -> None:
    code = """
from Inspection.adapters.custom_adapters.demo import CustomAdapter
adapter = CustomAdapter()
adapter.create_interface_objects(interface_class_name="Painter", colour="red")
adapter.run("paint", name="x")
print(adapter.result.interface_return, adapter.result.is_success, adapter.result.fuc_name)
"""
    assert printed(tmp_path, code) == ["red x True paint"]


def test_without_a_manifest_the_module_is_not_found(tmp_path: Path) -> None:
    done = run(tmp_path, "import Inspection.adapters.custom_adapters.other")
    assert "No module named 'Inspection.adapters.custom_adapters.other'" in done.stderr


def test_importing_makes_no_folder(tmp_path: Path) -> None:
    code = """
import Inspection, Inspection.adapters, Inspection.adapters.custom_adapters, Inspection.utils.path_manager, os
from Inspection import ENV_BASE
print(os.path.exists(os.environ["GENWRIGHT_HOME"]), ENV_BASE)
from Inspection.utils.path_manager import RESOURCES_PATH
print(sorted(os.listdir(RESOURCES_PATH)), os.path.exists(RESOURCES_PATH + "images/test_images_floder/1.jpg"))
"""
    home = tmp_path / "home"
    assert printed(tmp_path, code) == [
        f"False {home}/environments/",
        "['audios', 'images', 'pdfs', 'videos'] True",
    ]


def test_own_adapters_derive_from_the_base() -> None:
    class Mine(BaseAdapter):
        def create_interface_objects(self, interface_class_name: str = "", **kwargs: object) -> None: ...

        def run(self, dispatch_key: str, **kwargs: object) -> None:
            self.result.set_result(dispatch_key, True, "", False, "", None, kwargs)

    adapter = Mine()
    adapter.run("f", a=1)
    assert adapter.result == ExecutionResult("f", True, interface_return={"a": 1})
    with pytest.raises(TypeError):
        BaseAdapter()  # type: ignore[abstract]


def test_a_name_that_may_be_several_is_refused_where_interfaces_are_set_up(tmp_path: Path) -> None:
    code = """
from Inspection.core.executor import Executor
exe = Executor("demo", "simulation")
exe.setup(interfaces={"A.f": "paint", "B.f": "paint"})
exe.run("f")
"""
    assert f"{UserError.__name__}: 'f' may be A.f or B.f" in run(tmp_path, code).stderr
