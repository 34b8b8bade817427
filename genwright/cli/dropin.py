"""`genwright dropin`: run another project's commands and scripts on Genwright."""

from typing import Annotated

import typer

from genwright.cli.app import new_app
from genwright.errors import UserError

app = new_app()
_RAW = {"allow_interspersed_args": False, "ignore_unknown_options": True}  # what follows NAME is the original's


@app.command(context_settings=_RAW)
def dropin(
    name: Annotated[str | None, typer.Argument(help="The original; without it, the list of them.")] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND] [ARGS]...",
            help="The original's command and its arguments; or --script FILE ARGS; or --path alone.",
        ),
    ] = None,
) -> None:
    """Run another project's command on Genwright's modules.

    `--script FILE` runs a script of your own, with our modules ahead of those beside it. `--path` prints the folder of
    our modules, for PYTHONPATH.
    """
    from genwright.dropin.origins import ORIGINS
    from genwright.dropin.run import folder, run_command, run_script

    given = arguments or []
    if name is None:
        for each, origin in ORIGINS.items():
            print(f"{each:<18} {origin.about} Commands: {', '.join(origin.commands)}")
    elif given == ["--path"]:  # with a value, it is the original's own flag
        print(folder(name))
    elif given[:1] == ["--script"]:
        if len(given) == 1:
            raise UserError("--script needs a file.")
        run_script(name, given[1], given[2:])
    else:
        run_command(name, given)
