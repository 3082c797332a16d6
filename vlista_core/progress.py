"""The progress of training: a bar on a terminal, silence elsewhere, or whoever listens."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

Report = Callable[[float, float, float, float], None]
"""(share of the budget spent, loss, best validation, samples per second)."""

_listener: ContextVar[Report | None] = ContextVar("listener", default=None)


@contextmanager
def listening(report: Report) -> Iterator[None]:
    """Within it training reports to `report` and shows no bar: for callers that show progress of their own."""
    token = _listener.set(report)
    try:
        yield
    finally:
        _listener.reset(token)


def terminal_bar(*columns: ProgressColumn, shown: bool = True) -> Progress:
    """A bar on stderr; disabled unless it is to be shown and both outputs are terminals."""
    disable = not (shown and sys.stderr.isatty() and sys.stdout.isatty())
    console = Console(stderr=True)
    return Progress(*columns, console=console, redirect_stdout=False, redirect_stderr=False, disable=disable)


@contextmanager
def progress_bar(name: str, *, shown: bool) -> Iterator[Report]:
    """Give a function that updates the bar; it does nothing unless `shown` and both outputs are terminals."""
    listener = _listener.get()
    if listener is not None:
        yield listener
        return
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"), TimeRemainingColumn()
    with terminal_bar(*columns, shown=shown) as bar:
        task = bar.add_task(name, total=1.0, words="")

        def report(share: float, loss: float, validation: float, speed: float) -> None:
            words = f"loss {loss:.4g} validation {validation:.4g} {speed:.0f} samples/s"
            bar.update(task, completed=share, words=words)

        yield report
