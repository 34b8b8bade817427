"""Progress bars on stderr, if it is a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(title: str, show: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with the number of items done and the total."""
    with stages(show, title) as update:
        yield lambda done, total: update(title, done, total)


@contextmanager
def stages(show: bool = True, title: str = "") -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function to call with a stage's title, the number of items done, and the total (0 if unknown)."""
    if not show or not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # a file or pipe must get the output itself
    ) as shown:
        task = shown.add_task(title, total=None)
        yield lambda what, done, total: shown.update(task, description=what, completed=done, total=total or None)
