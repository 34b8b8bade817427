"""`genwright images`: sample, edit, train, search and metrics; sample is the default."""

from collections.abc import Callable

from genwright.cli.app import new_app
from genwright.cli.images.edit import edit
from genwright.cli.images.measure import metrics, search
from genwright.cli.images.sample import sample
from genwright.cli.images.train import train

commands = new_app(help="Sample, edit, train and measure images.", no_args_is_help=False)
COMMANDS: dict[str, Callable[..., None]] = {
    "sample": sample,
    "edit": edit,
    "train": train,
    "search": search,
    "metrics": metrics,
}
DEFAULT = "sample"
for command in COMMANDS.values():
    commands.command()(command)


def app(arguments: list[str], prog_name: str) -> None:
    """Run a subcommand; the default one if none is named."""
    if not arguments or arguments[0] not in (*COMMANDS, "--help", "-h"):
        arguments = [DEFAULT, *arguments]
    commands(arguments, prog_name=prog_name)
