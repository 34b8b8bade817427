"""Progress on a terminal: a bar on stderr, nothing where stderr is a file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A function that is told how much is done, and of how much."""
    with stages() as tell:
        tell(title, 0, 0)
        yield lambda done, total: tell(title, done, total)


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """A function that is told what is being done, how much of it is, and of how much; 0 where that is not known."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        yield lambda what, done, total: progress.update(task, description=what, completed=done, total=total or None)
