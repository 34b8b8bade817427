"""Run an original's command on our modules, or a user's script with our modules ahead of its own."""

import os
import re
import runpy
import sys
from pathlib import Path

from genwright.dropin.origins import ORIGINS, Origin
from genwright.errors import UserError


def find_origin(name: str) -> Origin:
    if name not in ORIGINS:
        raise UserError(f"There is no drop-in {name!r}; there is {', '.join(ORIGINS)}.")
    return ORIGINS[name]


def folder(name: str) -> Path:
    """The folder of an original's modules, for PYTHONPATH."""
    find_origin(name)
    return Path(__file__).parent / name


def run_command(name: str, arguments: list[str]) -> None:
    """Run one of the original's commands; the first argument may name it."""
    commands = find_origin(name).commands
    if arguments and arguments[0] in commands:
        command, *arguments = arguments
    elif arguments and not arguments[0].startswith("-"):
        raise UserError(f"{name} has no command {arguments[0]!r}; its commands are {', '.join(commands)}.")
    else:
        command = next(iter(commands))
    _run_module(name, commands[command], arguments)


def run_script(name: str, script: str, arguments: list[str]) -> None:
    """Run a script unmodified; what it imports of the original is ours.

    A script of the original that itself contains what we replace is replaced by our module of its name.
    """
    path = Path(script)
    if not os.path.isfile(path):  # unlike Path's, it is False for a name that is too long
        raise UserError(f"There is no script {script}.")
    for module in find_origin(name).whole:
        if f"/{path.resolve().as_posix()}".endswith(f"/{module.replace('.', '/')}.py"):
            print(f"genwright: {path.name} contains what is replaced, so Genwright's {module} runs.", file=sys.stderr)
            _run_module(name, module, arguments)
            return
    _import_from(folder(name), path.resolve().parent)
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    except ImportError as error:
        if (missing := _missing(name, error)) is None:
            raise
        raise UserError(f"The drop-in {name} has no {missing}; docs/coming-from.md says what it has.") from None
    _leave_ranks()


def _missing(name: str, error: ImportError) -> str | None:
    """What a script imported of the original that the drop-in does not have."""
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        return f"module {error.name}" if package and (folder(name) / package).is_dir() else None
    found = re.match(r"cannot import name '(\w+)'", error.msg)
    ours = error.path is not None and Path(error.path).is_relative_to(folder(name))
    return f"{found[1]} in {error.name}" if found and ours else None


def _run_module(name: str, module: str, arguments: list[str]) -> None:
    _import_from(folder(name))
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except OSError as error:
        if error.filename is None:
            raise
        raise UserError(f"{error.filename} cannot be read or written: {error.strerror}.") from None
    _leave_ranks()


def _leave_ranks() -> None:
    """Destroy the process group that a script left behind, because its threads may abort the process at its end."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def _import_from(*folders: Path) -> None:
    """Put folders first on this process's path, and the first of them on that of processes which it starts."""
    sys.path[:0] = map(str, folders)
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folders[0]), inherited)))
