"""Progress: bars on a terminal that keep their figures however narrow it is, silence elsewhere, or whoever listens."""

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

Report = Callable[[float, float, float, float], None]
"""(share of the budget spent, loss, best validation, samples per second); NaN for what is not known yet."""

_BAR = 16
_PERIOD = 3600.0
"""Seconds over which speed is counted: with rich's 30, work whose steps take longer would have no time left to show."""
_listener: ContextVar[Report | None] = ContextVar("listener", default=None)


@contextmanager
def listening(report: Report) -> Iterator[None]:
    """Within it training reports to `report` and shows no bar: for callers that show progress of their own."""
    token = _listener.set(report)
    try:
        yield
    finally:
        _listener.reset(token)


class DoneColumn(ProgressColumn):
    """What is done: "12/71", or "17 %" of a task with the field `share`; nothing while nobody knows how much there is."""

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text("")
        if task.fields.get("share"):
            return Text(f"{task.percentage:3.0f} %")
        return Text(f"{task.completed:.0f}/{task.total:.0f}")


class TimeLeftColumn(ProgressColumn):
    """The time left, in so many words, and at the end the time it took."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        if task.finished:
            return Text(f"took {clock(task.finished_time or 0.0)}")
        left = task.time_remaining
        return Text("" if left is None else f"{clock(left)} left")


def clock(seconds: float) -> str:
    """0:07, 12:30 or 3:05:00."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def bar_with(*figures: ProgressColumn, console: Console, disable: bool) -> Progress:
    """Words, a bar and figures over the width of the terminal. Where that is narrow words are cut, figures are not."""
    both = sys.stdout.isatty()  # what is printed meanwhile goes above the bar, unless it goes to a file
    words = TextColumn("{task.description}", markup=False, table_column=Column(ratio=1, no_wrap=True))
    return Progress(
        words, BarColumn(bar_width=_BAR), *figures, TimeLeftColumn(), console=console, disable=disable, expand=True,
        speed_estimate_period=_PERIOD, redirect_stdout=both, redirect_stderr=both,
    )  # fmt: skip


def terminal_bar(*figures: ProgressColumn, shown: bool = True) -> Progress:
    """A bar on stderr; disabled unless it is to be shown and both outputs are terminals."""
    disable = not (shown and sys.stderr.isatty() and sys.stdout.isatty())
    return bar_with(*figures, console=Console(stderr=True), disable=disable)


@contextmanager
def progress_bar(name: str, *, shown: bool) -> Iterator[Report]:
    """Give a function that updates the bar; it does nothing unless `shown` and both outputs are terminals."""
    listener = _listener.get()
    if listener is not None:
        yield listener
        return
    with terminal_bar(DoneColumn(), shown=shown) as bar:
        task = bar.add_task(name, total=1.0, share=True)

        def report(share: float, loss: float, validation: float, speed: float) -> None:
            words = known_figures(loss=loss, validation=validation)
            bar.update(task, completed=share, description=f"{name}: {words}, {speed:.0f} samples/s")

        yield report


def known_figures(**figures: float) -> str:
    """The figures that are known, by name: "loss 0.1, validation 0.2"; "training" before there are any."""
    known = [f"{name} {figure:.4g}" for name, figure in figures.items() if math.isfinite(figure)]
    return ", ".join(known) or "training"
