"""Tables of text for the terminal, Markdown and HTML alike, and how figures are written in them."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as RichTable


@dataclass(frozen=True)
class Table:
    """A title, a heading for each column and lines of text; `bounds` counts the lines at the end that are bounds."""

    title: str
    heading: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    bounds: int = 0

    def markdown(self) -> str:
        """The table in Markdown, its title above it."""
        rule = ["---", *("---:" for _ in self.heading[1:])]
        lines = [self.heading, rule, *self.lines]
        return "\n".join([f"**{self.title}**", "", *("| " + " | ".join(line) + " |" for line in lines), ""])


def print_table(table: Table, console: Console | None = None) -> None:
    """A table for people on a terminal, in Markdown elsewhere."""
    console = console or Console()
    if not console.is_terminal:
        console.print(table.markdown(), highlight=False, markup=False, soft_wrap=True)
        return
    shown = RichTable(title=table.title, box=None, header_style="bold", title_justify="left")
    for number, heading in enumerate(table.heading):
        shown.add_column(heading, justify="left" if number == 0 else "right", no_wrap=True)
    for number, line in enumerate(table.lines):
        bound = number >= len(table.lines) - table.bounds
        shown.add_row(*line, style="dim" if bound else "bold" if number == 0 else None)
    console.print(shown)


def decibels(value: float | None, digits: int = 1) -> str:
    """A level with a proper minus; a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")


def signed(value: float | None, digits: int = 2) -> str:
    """A difference with its sign."""
    return "–" if value is None else f"{value:+.{digits}f}".replace("-", "−")


def milliseconds(value: float | None) -> str:
    """A time with two significant digits at least."""
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"
