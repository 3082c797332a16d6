"""Tables of text for the terminal, Markdown and HTML alike, and how figures are written in them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

import pandas as pd
from rich.console import Console
from rich.markup import escape as markup
from rich.table import Table as RichTable

Lines = Iterable[Sequence[str]]
Marked = frozenset[tuple[int, int]]
"""(line, column) of entries."""


@dataclass(frozen=True)
class Table:
    """A title and a frame of text."""

    title: str
    frame: pd.DataFrame
    bounds: int = 0
    """Lines at the end that are bounds; where there are some, the first line is the best."""
    detail: bool = False
    """Whether the table is for the page alone, folded."""
    marked: Marked = frozenset()
    """Entries in bold."""
    shades: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """(line, column) of entries that a page shades -> how much, 0 to 1."""

    @classmethod
    def of(
        cls, title: str, heading: Sequence[str], lines: Lines, *, bounds: int = 0, detail: bool = False,
        marked: Marked = frozenset(), shades: Mapping[tuple[int, int], float] | None = None,
    ) -> "Table":  # fmt: skip
        """A table from its lines."""
        frame = pd.DataFrame([list(line) for line in lines], columns=list(heading), dtype=object)
        return cls(title, frame, bounds, detail, marked, shades or {})

    @property
    def heading(self) -> tuple[str, ...]:
        """The name of each column."""
        return tuple(str(column) for column in self.frame.columns)

    @property
    def lines(self) -> list[tuple[str, ...]]:
        """The text of each line."""
        return [tuple(str(entry) for entry in line) for line in self.frame.itertuples(index=False, name=None)]

    def markdown(self) -> str:
        """The table in Markdown, its title above it."""
        rule = ["---", *("---:" for _ in self.heading[1:])]
        lines = [self.heading, rule, *self._shown("**{}**")]
        return "\n".join([f"**{self.title}**", "", *("| " + " | ".join(line) + " |" for line in lines), ""])

    def html(self) -> str:
        """The table in HTML. With a heading it can be sorted, and scrolls sideways where it is too wide; without one it holds
        words, which are wrapped."""
        heading = "".join(f'<th scope="col">{escape(text)}</th>' for text in self.heading)
        head = f"<thead><tr>{heading}</tr></thead>" if any(self.heading) else ""
        lines = self._shown("<strong>{}</strong>", escape)
        looks = (f' class="{kind}"' if kind else "" for kind in self._kinds())
        rows = (self._html_row(number, line) for number, line in enumerate(lines))
        body = "\n".join(f"<tr{look}>{row}</tr>" for look, row in zip(looks, rows, strict=True))
        title, kind = escape(self.title), "sorts fields" if self.shades else "sorts" if head else "words"
        table = f'<table class="{kind}"><caption><span>{title}</span></caption>{head}'
        around = f'<div class="wide" role="region" aria-label="{title}" tabindex="0">'
        return f"{around}{table}<tbody>\n{body}\n</tbody></table></div>"

    def _html_row(self, number: int, line: Sequence[str]) -> str:
        """A line whose first entry is the heading of the others."""
        first, *others = line
        cells = [f'<th scope="row">{first}</th>']
        for column, text in enumerate(others, start=1):
            shade = self.shades.get((number, column))
            look = "" if shade is None else f' class="shaded" style="--shade-of: {shade:.2f}"'
            cells.append(f"<td{look}>{text}</td>")
        return "".join(cells)

    def _shown(self, bold: str, escaped: Callable[[str], str] = str) -> list[tuple[str, ...]]:
        """The text of each line, escaped, what is marked in the form `bold`."""
        return [
            tuple(
                bold.format(escaped(text)) if (row, column) in self.marked else escaped(text)
                for column, text in enumerate(line)
            )
            for row, line in enumerate(self.lines)
        ]

    def _kinds(self) -> list[str]:
        """What each line is: "best", "bound" or ""."""
        lines, best = range(len(self.frame)), "best" if self.bounds else ""
        return ["bound" if line >= len(lines) - self.bounds else "" if line else best for line in lines]

    def rich(self, columns: int) -> RichTable:
        """The first `columns` columns for a terminal, without the title, which may be wider than they are."""
        shown = RichTable(box=None, header_style="bold", pad_edge=False)
        for number, text in enumerate(self.heading[:columns]):
            shown.add_column(text, justify="right" if number else "left", no_wrap=number > 0, overflow="fold")
        styles = {"best": "bold", "bound": "dim", "": None}
        for kind, line in zip(self._kinds(), self._shown("[bold]{}[/bold]", markup), strict=True):
            shown.add_row(*line[:columns], style=styles[kind])
        return shown


def print_table(table: Table, console: Console | None = None) -> None:
    """A table for people on a terminal, in Markdown elsewhere; columns that do not fit are left out and named, never cut."""
    console = console or Console()
    if not console.is_terminal:
        console.print(table.markdown(), highlight=False, markup=False, soft_wrap=True)
        return
    columns = len(table.heading)
    while columns > 2 and _width(table, columns) > console.width:
        columns -= 1
    console.print(table.title, style="italic", highlight=False, markup=False)
    console.print(table.rich(columns))
    if left_out := table.heading[columns:]:
        console.print(f"not shown for want of width: {', '.join(left_out)}", style="dim", highlight=False, markup=False)


def _width(table: Table, columns: int) -> int:
    """What the columns need."""
    return Console(width=10_000).measure(table.rich(columns)).maximum


def decibels(value: float | None, digits: int = 1, *, diverged: float | None = None) -> str:
    """A level with a proper minus; what `number` says where there is none."""
    return number(value, f".{digits}f", diverged=diverged).replace("-", "−")


def signed(value: float | None, digits: int = 2) -> str:
    """A difference with its sign."""
    return number(value, f"+.{digits}f").replace("-", "−")


def milliseconds(value: float | None) -> str:
    """A time with two significant digits at least."""
    size = value or 0.0
    return number(value, ".0f" if size >= 10 else ".1f" if size >= 1 else ".3f")


def number(value: float | None, form: str, *, diverged: float | None = None) -> str:
    """A figure in a format such as ".3f". Where there is none (None or NaN): "diverged (3)" for so many samples whose estimate
    was not finite, else a dash, for what was not run."""
    if not missing(value):
        return format(value, form)
    return "–" if missing(diverged) or not diverged else f"diverged ({diverged:.0f})"


def missing(value: float | None) -> bool:
    """Whether an entry of a frame is empty: None or NaN."""
    return value is None or value != value
