"""What the command lines share: options, where output goes, errors in one line, progress with time left."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from vlista_core.files import in_words
from vlista_core.progress import DoneColumn, bar_with

Workers = Annotated[int, typer.Option("--workers", help="Processes of this machine.")]
Scheduler = Annotated[str | None, typer.Option("--scheduler", help="Address of a dask scheduler, in place of workers.")]
Restart = Annotated[bool, typer.Option("--restart", help="Forget what the folder holds, and run it again.")]
Hours = Annotated[float, typer.Option("--hours", help="Start no cell once these have passed.", show_default=False)]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Folder of the run.")]
TrainedOn = Annotated[str, typer.Option("--device", help="Where networks are trained: auto, cpu, cuda or cuda:N.")]


def _show_version(context: typer.Context, asked: bool) -> None:
    if asked:
        import vlista_core

        tell(f"{context.command.name} {vlista_core.__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it and exit.")]
FOREVER = math.inf
"""The default of `Hours`."""
out = Console()
err = Console(stderr=True)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """A user's mistake ends in one line on stderr and exit code 2, never in a traceback."""
    try:
        yield
    except (ValueError, OSError) as error:
        words = in_words(error) if isinstance(error, OSError) else str(error)
        say(f"error: {' '.join(words.split())}")
        raise typer.Exit(2) from None


def say(message: str) -> None:
    """A line on stderr."""
    err.print(message, markup=False, highlight=False, soft_wrap=True)


def tell(message: str) -> None:
    """A line on stdout."""
    out.print(message, markup=False, highlight=False, soft_wrap=True)


def next_step(words: str) -> None:
    """The last line of a command: what to do with what it has made."""
    tell(f"next: {words}")


def names_in(text: str) -> list[str]:
    """Names with commas between."""
    return [name.strip() for name in text.split(",") if name.strip()]


def progress() -> Progress:
    """A bar with counts and the time left on stderr; silent where that is no terminal."""
    return bar_with(DoneColumn(), console=err, disable=not err.is_terminal)


@contextmanager
def share_bar(title: str) -> Iterator[Callable[[float, str], None]]:
    """A bar for work that tells the share that is done, 0 to 1, and a few words."""
    with progress() as bar:
        task = bar.add_task(title, total=1.0, share=True)
        yield lambda share, words: bar.update(task, completed=share, description=f"{title}: {words}")


@contextmanager
def step_bar(title: str, *, resumes_in: Path | None = None) -> Iterator[Callable[[float, int, str], None]]:
    """A bar for work that tells the steps done, all steps and a few words.

    resumes_in: the folder from which work that is interrupted goes on; then Ctrl-C ends in a line that says so, and in 130.
    """
    with progress() as bar:
        task = bar.add_task(title, total=None)
        try:
            yield lambda done, total, words: bar.update(task, completed=done, total=total, description=words or title)
        except KeyboardInterrupt:
            if resumes_in is None:
                raise
            bar.stop()
            say(f"stopped; what is done is in {resumes_in}, and the same command goes on from there")
            raise typer.Exit(130) from None
