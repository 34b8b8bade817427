"""Run a planned script as the main module of this process."""

import linecache
import sys
import types
from importlib.util import decode_source
from pathlib import Path
from typing import Any

from genwright.inspect.executor import Executor
from genwright.inspect.media.samples import sample_folder
from genwright.inspect.records.plan_file import Plan
from genwright.inspect.run.intercept import Interception


def run_script(plan: Plan, name: str) -> None:
    """Execute the script as the module `name`, which is then the main one."""
    source = Path(plan.source).read_bytes()
    if plan.source != plan.script:  # a notebook or a changed copy: tracebacks show the lines that run
        linecache.cache[plan.script] = (len(source), None, decode_source(source).splitlines(True), plan.script)
    module = types.ModuleType(name)
    vars(module).update(__file__=plan.script, __package__=plan.package or None, __spec__=None, __loader__=None)
    sys.modules[name] = sys.modules["__main__"] = module
    exec(_code(plan, source, vars(module)), vars(module))


def _code(plan: Plan, source: bytes, names: dict[str, Any]) -> types.CodeType:
    if plan.rewritten:
        # It sets itself up, but for the arguments: a process that the script starts has its own.
        line = f"sys.argv[:] = {[plan.script, *plan.argv]!r}"
        return compile(source.replace(line.encode(), b"sys.argv[:]", 1), plan.source, "exec", dont_inherit=True)
    executor = Executor(plan.project, plan.label)
    homes = {t.name: t.homes[0] if t.homes else "" for t in plan.interfaces}
    executor.setup(homes, plan.files, plan.answers, plan.overrides, plan.scenario)
    executor.unattended()
    interception = Interception(plan, executor)
    interception.install()
    names.update(interception.names())
    if plan.resources:
        names[plan.resources] = f"{sample_folder()}/"
    return interception.code(source)
