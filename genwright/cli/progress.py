"""Progress on a terminal: a bar on stderr, nothing where stderr is a file."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(title: str, show: bool = True) -> Iterator[Callable[[int, int], None]]:
    """A function that is told how much is done, and of how much."""
    with stages(show, title) as tell:
        yield lambda done, total: tell(title, done, total)


@contextmanager
def stages(show: bool = True, title: str = "") -> Iterator[Callable[[str, int, int], None]]:
    """A function that is told what is being done, how much of it is, and of how much; 0 where that is not known."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns,
        console=console,
        transient=True,
        disable=not show or not console.is_terminal,
        # Results that go to a file or a pipe must not be drawn above the bar instead.
        redirect_stdout=sys.stdout.isatty(),
    ) as progress:
        task = progress.add_task(title, total=None)
        yield lambda what, done, total: progress.update(task, description=what, completed=done, total=total or None)
