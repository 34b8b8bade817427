"""Run an original's command on our modules, or a user's script with our modules ahead of its own."""

import os
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
    if not path.is_file():
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
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not (package and (folder(name) / package).is_dir()):
            raise
        raise UserError(
            f"The drop-in {name} has no module {error.name}; docs/coming-from.md says what it has."
        ) from None


def _run_module(name: str, module: str, arguments: list[str]) -> None:
    _import_from(folder(name))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _import_from(*folders: Path) -> None:
    """Put folders first on this process's path, and the first of them on that of processes which it starts."""
    sys.path[:0] = map(str, folders)
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folders[0]), inherited)))
