"""The executor: dispatch, one fresh record per call, and a run that ends by itself."""

import asyncio
import functools
import gc
import json
import subprocess
import sys
import types
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_cases import PROJECT, ROOT

from genwright import Executor
from genwright.errors import UserError
from genwright.inspect.records.stored_runs import Call, StoredRun


@pytest.fixture
def exe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Executor:
    monkeypatch.setenv("GENWRIGHT_RECORDS", str(tmp_path / "records"))
    monkeypatch.setattr(sys, "argv", ["script.py"])
    return Executor("demo", "simulation")


def records(exe: Executor) -> list[Call]:
    return list(StoredRun(Path(exe.now_record_path)).calls())


def module(monkeypatch: pytest.MonkeyPatch, **names: Any) -> str:
    made = types.ModuleType("border")
    vars(made).update(names)
    monkeypatch.setitem(sys.modules, "border", made)
    return "border"


class Painter:
    def __init__(self, colour: str = "red") -> None:
        self.colour = colour

    def paint(self, name: str, interface_class_name: str = "") -> str:
        return f"{self.colour} {name}"


def test_a_function_is_recorded_before_and_after(exe: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    def double(values: list, name: str = "") -> list:
        values += values
        return values

    exe.setup(interfaces={"double": module(monkeypatch, double=double)})
    assert exe.run("double", [1], name="x") == [1, 1]
    (record,) = records(exe)
    # The argument is what it was when the call began.
    assert (record.arguments, record.keywords, record.result) == ([], {"values": [1], "name": "x"}, [1, 1])
    assert record.status == "returned" and record.seconds >= 0 and record.interface == "double"


def test_an_exception_is_recorded_and_raised(exe: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise KeyError("lost")

    exe.setup(interfaces={"fail": module(monkeypatch, fail=fail), "good": "border"})
    sys.modules["border"].good = lambda: 1
    with pytest.raises(KeyError):
        exe.run("fail")
    exe.run("good")
    first, second = records(exe)
    assert first.status == "raised" and first.exception["type"] == "KeyError" and first.result is None
    assert second.status == "returned" and second.exception is None


def test_a_method_runs_on_the_object_last_created(exe: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    exe.setup(interfaces={"Painter": module(monkeypatch, Painter=Painter), "Painter.paint": "border"})
    with pytest.raises(UserError, match="none that was created is alive"):
        exe.run("paint", name="x")
    red = exe.create_interface_objects(interface_class_name="Painter")
    blue = exe.create_interface_objects("blue", interface_class_name="Painter")
    assert exe.run("paint", name="house") == "blue house"
    assert exe.on(red).run("paint", "door", interface_class_name="kept") == "red door"
    *_, third, fourth = records(exe)
    assert (third.object, fourth.object) == (2, 1) and fourth.interface == "Painter.paint"
    assert fourth.keywords == {"name": "door", "interface_class_name": "kept"} and blue.colour == "blue"


def test_the_script_decides_how_long_its_object_lives(exe: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    exe.setup(interfaces={"Painter": module(monkeypatch, Painter=Painter), "Painter.paint": "border"})
    made = exe.create_interface_objects(interface_class_name="Painter")
    alive = weakref.ref(made)
    del made
    gc.collect()
    assert alive() is None


def test_coroutines_and_generators_are_recorded_when_they_end(exe: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    async def later(x: int) -> int:
        await asyncio.sleep(0)
        return x + 1

    def count(n: int):
        received = yield from range(n)
        return received

    async def acount(n: int):
        for i in range(n):
            yield i

    names = {"later": later, "count": count, "acount": acount}
    exe.setup(interfaces=dict.fromkeys(names, module(monkeypatch, **names)))
    assert asyncio.run(exe.run("later", 1)) == 2
    assert list(exe.run("count", 3)) == [0, 1, 2]
    partly = exe.run("count", 5)
    assert next(partly) == 0
    partly.close()

    async def collect() -> list[int]:
        return [i async for i in exe.run("acount", 2)]

    assert asyncio.run(collect()) == [0, 1]
    done = records(exe)
    assert done[0].result == 2
    assert [(r.result["count"], r.result["items"]) for r in done[1:]] == [(3, [0, 1, 2]), (1, [0]), (2, [0, 1])]


def test_files_of_a_call(exe: Executor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def copy(source: str, target: str, text: str) -> None:
        Path(target).write_bytes(Path(source).read_bytes())
        (Path(exe.now_record_path) / "extra.txt").write_text(text)

    (tmp_path / "in.txt").write_text("hello")
    exe.setup(interfaces={"copy": module(monkeypatch, copy=copy)}, files={"copy": ["target"]})
    exe.run("copy", source=str(tmp_path / "in.txt"), target=str(tmp_path / "out.txt"), text="no file")
    files = {Path(f["path"]).name: f for f in records(exe)[0].files}
    assert {n: f["written"] for n, f in files.items()} == {"in.txt": False, "out.txt": True, "extra.txt": True}
    assert files["in.txt"]["sha256"] == files["out.txt"]["sha256"] and files["out.txt"]["bytes"] == 5


def test_a_registered_global_is_looked_up_anew(exe: Executor) -> None:
    names: dict[str, Any] = {"exe": exe}
    exec("def f(x): return x\nexe.register(f)\nold = f\ndef f(x): return -old(x)\nresult = exe.run('f', 3)", names)
    assert names["result"] == -3


def test_a_manifest_beside_the_script_is_enough(exe: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, Painter=Painter, mix=lambda a: a)
    (tmp_path / "demo.toml").write_text(
        'project = "demo"\n[[interface]]\nname = "Painter.paint"\nmodule = "border"\n'
        '[[interface]]\nname = "mix"\nmodule = "border"\n'
    )
    monkeypatch.chdir(tmp_path)
    exe.create_interface_objects(interface_class_name="Painter", colour="green")
    assert exe.run("paint", name="x") == "green x" and exe.run("mix", 4) == 4
    with pytest.raises(UserError, match="knows no interface 'nothing'"):
        exe.run("nothing")


def test_answers_then_an_explicit_end(exe: Executor, capsys: pytest.CaptureFixture[str]) -> None:
    exe.setup(answers=["yes", "no"])
    assert [exe.input("? "), exe.input()] == ["yes", "no"]
    with pytest.raises(EOFError):
        exe.input("? ")
    with pytest.raises(SystemExit):
        exe.input("? ")
    assert [r.result for r in records(exe)] == ["yes", "no", None, None]
    assert [r.event for r in records(exe)][2:] == ["end-of-answers"] * 2
    sys.excepthook = sys.__excepthook__


def test_a_run_that_is_out_of_answers_ends_well(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from Inspection.core.executor import Executor\nexe = Executor('demo', 'simulation')\n"
        "exe.setup(answers=['a'])\nwhile True: print(exe.input('> '))\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0 and "answers are used up" in done.stderr and "Traceback" not in done.stderr


def test_each_run_has_a_folder_of_its_own_and_tells_its_scenario(exe: Executor) -> None:
    other = Executor("demo", "simulation")
    assert other.now_record_path != exe.now_record_path
    other.setup(overrides={"main.n": 1}, scenario={"limits": {"seconds": 5}}, answers=["x"])
    run = json.loads((Path(other.now_record_path) / "run.json").read_text())
    assert run["set"] == {"main.n": 1} and run["scenario"] == {"limits": {"seconds": 5}} and run["answers"] == ["x"]
    with pytest.raises(UserError, match="plain names"):
        Executor("../escape", "simulation")


def test_arrays_are_summarised_without_torch(exe: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    exe.setup(interfaces={"f": module(monkeypatch, f=lambda *a, **k: None)})
    exe.run("f", np.arange(6, dtype=np.float32).reshape(2, 3), big="x" * 5000, odd=float("nan"), path=Path("a"))
    (record,) = records(exe)
    assert record.arguments[0]["shape"] == [2, 3] and record.arguments[0]["dtype"] == "float32"
    assert record.keywords["big"]["length"] == 5000 and record.keywords["odd"] == {"type": "float", "value": "nan"}


def test_the_executor_imports_little() -> None:
    code = "import sys, Inspection.core.executor; print(sorted({'torch', 'numpy', 'typer', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, env={"PYTHONPATH": str(ROOT)}, capture_output=True)
    assert done.stdout.strip() == b"[]", done.stderr


def test_a_callable_tells_whether_it_is_an_interface(exe: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    def double(value: int, times: int = 2) -> int:
        return value * times

    home = module(monkeypatch, double=double, Painter=Painter)
    exe.setup(interfaces={"double": home, "Painter": home, "Painter.paint": home})
    painter = exe.create_interface_objects(interface_class_name="Painter")
    held = [double, functools.partial(functools.partial(double, times=3), 4), painter.paint, str, lambda x: x]
    assert [exe.on(h).run("__call__", *given) for h, given in zip(held, [[1], [], ["x"], [1], [2]], strict=True)] == [
        2, 12, "red x", "1", 2,
    ]  # fmt: skip
    told = [(r.interface, r.arguments, r.keywords, r.object) for r in records(exe)[1:]]
    assert told == [
        ("double", [], {"value": 1}, None),
        ("double", [], {"value": 4, "times": 3}, None),
        ("Painter.paint", [], {"name": "x"}, 1),
    ]
