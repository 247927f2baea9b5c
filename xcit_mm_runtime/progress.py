"""Progress bars: every command shows progress in the same way."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

T = TypeVar('T')


def progress_bar(*columns: 'str | ProgressColumn', transient: bool = True) -> 'Progress':
    """Return a progress bar that draws on a terminal and writes nothing anywhere else.

    It draws on standard error, because the output of a command may be read by a program.

    Args:
        *columns (str or ProgressColumn): What each line shows. Defaults to rich's columns.
        transient (bool): Whether it disappears at the end. Defaults to True.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    hidden = not console.is_terminal
    return Progress(*columns, console=console, transient=transient, disable=hidden)


def track(items: Iterable[T], description: str, total: int | None = None) -> Iterable[T]:
    """Iterate over items with a :func:`progress_bar`, where rich is installed.

    Args:
        items (Iterable): Anything.
        description (str): What is being done.
        total (int, optional): How many items there are. Defaults to None, their length.
    """
    try:
        bar = progress_bar()
    except ImportError:
        yield from items
        return
    with bar as progress:
        yield from progress.track(items, total=total, description=description)
