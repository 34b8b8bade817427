"""Small recorded runs: a script is executed with a model module made of plain functions, and its calls are recorded."""

import json
import random
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from genwright.inspect.records.stored_runs import StoredRun
from genwright.inspect.records.stored_values import store_value
from genwright.inspect.records.summary import summarise


def record_run(folder: Path, source: str, model: dict[str, Any], **data: Any) -> StoredRun:
    """Execute a script that imports from `themodel`, as intercept does; `data` goes over the run's record."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "calls").mkdir()
    script = folder / "script.py"
    script.write_text(source)
    calls: list[dict[str, Any]] = []
    homes = {}
    made = types.ModuleType("themodel")
    for name, target in model.items():
        homes[name] = "themodel"
        setattr(made, name, _recording(name, target, script, folder, calls))
    argv, sys.argv = sys.argv, [str(script), *data.get("argv", [])]
    sys.modules["themodel"] = made
    error = None
    try:
        exec(compile(source, str(script), "exec"), {"__name__": "__main__", "__file__": str(script)})
    except Exception as raised:
        error = raised
    finally:
        sys.argv = argv
        del sys.modules["themodel"]
    return write_run(folder, calls, script=str(script), interfaces=homes, status="failed" if error else "ended", **data)


def write_run(folder: Path, calls: list[dict[str, Any]], **data: Any) -> StoredRun:
    """A run's folder from records alone."""
    (folder / "calls").mkdir(parents=True, exist_ok=True)
    for number, call in enumerate(calls, 1):
        whole = {"number": number, "process": 1, "event": "run", "status": "returned", "arguments": [], "keywords": {}}
        whole |= call
        name = f"{number:06d}-{whole['event']}-{whole['interface']}.json"
        (folder / "calls" / name).write_text(json.dumps(whole))
    run = {"name": "themodel", "label": "pre", "argv": [], "status": "ended", "exit_code": 0, "started": time.time()}
    (folder / "run.json").write_text(json.dumps(run | data))
    return StoredRun(folder)


def _recording(name: str, target: Callable, script: Path, folder: Path, calls: list[dict[str, Any]]) -> Callable:
    def recorded(*args: Any, **kwargs: Any) -> Any:
        call: dict[str, Any] = {
            "interface": name,
            "event": "create" if isinstance(target, type) else "run",
            "file": str(script),
            "line": sys._getframe(1).f_lineno,
            "started": time.time(),
            "arguments": [summarise(a) for a in args],
            "keywords": {k: summarise(v) for k, v in kwargs.items()},
        }
        calls.append(call)
        number = len(calls)
        state = random.getstate()
        try:
            result = target(*args, **kwargs)
        except Exception as error:
            exception = {"type": type(error).__name__, "message": str(error), "traceback": []}
            call |= {"status": "raised", "exception": exception}
            raise
        finally:
            random.setstate(state)
        value = store_value(result, folder / "values" / f"{number:06d}")
        call |= {
            "result": summarise(result),
            "seconds": 0.01,
            "value": str(value.relative_to(folder)) if value else None,
        }
        return result

    return recorded
