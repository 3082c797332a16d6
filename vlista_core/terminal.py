"""What the command lines share: where output goes, errors in one line, progress with time left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

out = Console()
err = Console(stderr=True)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """A user's mistake ends in one line on stderr and exit code 2, never in a traceback."""
    try:
        yield
    except (ValueError, OSError) as error:
        say(f"error: {' '.join(str(error).split())}")
        raise typer.Exit(2) from None


def say(message: str) -> None:
    """A line on stderr."""
    err.print(message, markup=False, highlight=False, soft_wrap=True)


def tell(message: str) -> None:
    """A line on stdout."""
    out.print(message, markup=False, highlight=False, soft_wrap=True)


def names_in(text: str) -> list[str]:
    """Names with commas between."""
    return [name.strip() for name in text.split(",") if name.strip()]


def progress() -> Progress:
    """A bar with counts and the time left on stderr; silent where that is no terminal."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left"), TimeRemainingColumn(), console=err, disable=not err.is_terminal,
    )  # fmt: skip
