"""One HTML page that holds everything and needs nothing else: its style, its tables, embedded figures, folded parts."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape
from pathlib import Path

from vlista_core.tables import Table

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.message { font-size: 1.15rem; border-left: 4px solid #0072b2; padding: .2rem 0 .2rem .9rem; }
.wide { overflow-x: auto; } img { max-width: 100%; height: auto; background: #fff; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
caption { text-align: left; font-weight: 600; padding-bottom: .4rem; }
th, td { padding: .2rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; } tr.bound td { font-style: italic; opacity: .8; }
tr.best td { font-weight: 600; } .quiet { opacity: .75; font-size: .9rem; }
pre { overflow-x: auto; font-size: .8rem; } summary { cursor: pointer; font-weight: 600; margin: .8rem 0; }
"""


def page_html(title: str, parts: Iterable[str]) -> str:
    """The page whose body is `parts`, which are HTML already."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style></head><body>",
            *parts,
            "</body></html>\n",
        ]
    )


def figure_html(title: str, path: Path, *, caption: str = "", level: int = 2) -> str:
    """A PNG, embedded, under a heading of that level; the caption stands below it."""
    image = base64.b64encode(path.read_bytes()).decode()
    shown = f'<h{level}>{escape(title)}</h{level}>\n<img alt="{escape(title)}" src="data:image/png;base64,{image}">'
    return f"{shown}\n{quiet(caption)}" if caption else shown


def quiet(text: str) -> str:
    """A paragraph of explanation."""
    return f'<p class="quiet">{escape(text)}</p>'


def table_html(table: Table) -> str:
    """A table that scrolls sideways where it is too wide."""
    last = len(table.lines) - table.bounds

    def line(number: int, cells: tuple[str, ...]) -> str:
        look = ' class="bound"' if number >= last else ' class="best"' if number == 0 and table.bounds else ""
        return f"<tr{look}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"

    heading = "".join(f"<th>{escape(text)}</th>" for text in table.heading)
    lines = "\n".join(line(number, cells) for number, cells in enumerate(table.lines))
    head = f"<thead><tr>{heading}</tr></thead>" if any(table.heading) else ""
    return f'<div class="wide"><table><caption>{escape(table.title)}</caption>{head}<tbody>\n{lines}\n</tbody></table></div>'


def folded(title: str, content: str) -> str:
    """HTML that is shown on a click."""
    return f"<details><summary>{escape(title)}</summary>\n{content}\n</details>"
