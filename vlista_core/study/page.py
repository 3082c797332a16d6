"""The page of a folder: tables in Markdown, rows as CSV, figures, and one HTML file that holds everything by itself.

Its style and its scripts are the files in assets/; where scripts do not run, the pictures stand in for the charts.
"""

import base64
import json
from collections import Counter
from html import escape
from importlib import resources
from pathlib import Path

import pandas as pd

from vlista_core.files import replacing, write_text
from vlista_core.study.base import Figure, Study
from vlista_core.study.store import Provenance, Read, Registry, holds_study, read_study
from vlista_core.study.tables import Table
from vlista_core.tensorfile import Json

_ASSETS = resources.files("vlista_core.study") / "assets"
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style></head><body>
<button type="button" id="theme" hidden></button>
<h1>{title}</h1>"""
_MANY = 3
"""Sections from which on the page begins with links to them."""


def write_page(folder: Path | str, registry: Registry, *, title: str | None = None) -> Path:
    """report.html of the study in `folder` and of those in its direct subfolders; returns its path.

    table.md, rows.csv and the figures of each study go into its own folder. title: the study's own if None.
    """
    folder, order = Path(folder), list(registry)
    places = [folder, *(sorted(folder.iterdir()) if folder.is_dir() else [])]
    found = [(place, read_study(place, registry)) for place in places if holds_study(place)]
    found.sort(key=lambda pair: (pair[0] != folder, order.index(pair[1].study.name)))
    found = [(place, read) for place, read in found if read.records]
    if not found:
        raise ValueError(f"{folder} holds no finished cells of a study")
    title = title or found[0][1].study.title()
    parts = [_HEAD.format(title=escape(title), style=_asset("page.css"))]
    headings = [escape(read.study.title()) for _, read in found]
    if len(found) >= _MANY:
        links = (f'<a href="#study-{number}">{heading}</a>' for number, heading in enumerate(headings))
        parts.append(f"<nav>{' '.join(links)}</nav>")
    for number, (heading, (place, read)) in enumerate(zip(headings, found, strict=True)):
        parts += [f'<section id="study-{number}">', *([] if heading == escape(title) else [f"<h2>{heading}</h2>"])]
        parts += [*_section(place, read), "</section>"]
    page = folder / "report.html"
    scripts = (f"<script>\n{_asset(name)}</script>" for name in ("page.js", "chart.js"))
    write_text(page, "\n".join([*parts, *scripts, "</body></html>\n"]))
    return page


def markdown(study: Study, frame: pd.DataFrame) -> str:
    """The message and the tables of a study, without details."""
    message, tables = study.headline(frame), study.tables(frame)
    parts = [f"{message}\n"] if message else []
    return "\n".join([*parts, *(table.markdown() for table in tables if not table.detail)])


def _section(folder: Path, read: Read) -> list[str]:
    """Write the files of a study and return its part of the page."""
    study, frame = read.study, read.frame
    tables, message = study.tables(frame), study.headline(frame)
    write_text(folder / "table.md", markdown(study, frame))
    plain = frame.loc[:, [not any(isinstance(entry, list | dict) for entry in frame[key]) for key in frame.columns]]
    with replacing(folder / "rows.csv") as partial:
        plain.to_csv(partial, index=False, lineterminator="\n")
    seconds = sum(record.provenance.seconds or 0.0 for record in read.records)
    work = f", in {seconds / 60:.0f} minutes of work" if seconds >= 90 else ""
    done = f"{len(read.records)} of {len(read.about.cells)} cells are done{work}."
    first, *others = [table.html() for table in tables] or [""]
    figures = [figure for figure in study.figures(frame, folder) if figure.on_page]
    parts = [f'<p class="message">{escape(message)}</p>'] if message else []
    parts += [_quiet(f"{study.explanation(frame)} {done}"), *map(_figure, figures), first]
    parts += [_folded("More tables", "\n<br>".join(others))] if others else []
    parts += [_quiet(note) for note in read.about.notes]
    settings = _flat("", study.configuration())
    parts += [_folded("Configuration", Table.of("What was run", ("", ""), settings).html())] if settings else []
    counts = Counter(_facts(record.provenance) for record in read.records)
    made = Table.of("Rows by what they were run with", ("", "cells"), [(text, str(n)) for text, n in counts.items()])
    return [*parts, _folded("What the cells were run with", made.html())]


def _facts(made: Provenance) -> str:
    """The commit, the versions and the machine of a row."""
    facts = {"commit": made.commit, "dirty": made.dirty, **(made.versions or {}), **(made.machine or {})}
    return ", ".join(f"{key} {value}" for key, value in facts.items() if value is not None) or "not known"


def _figure(figure: Figure) -> str:
    """A chart drawn from its numbers, or a picture that opens at full size, under its title; the caption stands below it."""
    image, title = base64.b64encode(figure.path.read_bytes()).decode(), escape(figure.title)
    look = "" if figure.chart else ' class="picture" title="open at full size"'
    shown = f'<img{look} alt="{_alternative(figure)}" src="data:image/png;base64,{image}">'
    if figure.chart is not None:
        numbers = json.dumps(figure.chart.as_json(), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        numbers = numbers.replace("<", "\\u003c")
        shown = f'<noscript>{shown}</noscript><script type="application/json">{numbers}</script>'
    kind = ' class="chart"' if figure.chart else ""
    whole = f"<h3>{title}</h3>\n<figure{kind}>{shown}</figure>"
    return f"{whole}\n{_quiet(figure.caption)}" if figure.caption else whole


def _alternative(figure: Figure) -> str:
    """What a picture shows, for those who do not see it; the numbers are in the tables."""
    if figure.chart is None:
        return escape(f"{figure.title}. {figure.caption}".strip())
    names = dict.fromkeys(series.label for panel in figure.chart.panels for series in panel.series)
    return escape(f"{figure.title}: {figure.chart.y.label} over {figure.chart.x.label} of {', '.join(names)}")


def _asset(name: str) -> str:
    """A file that goes into every page."""
    return (_ASSETS / name).read_text(encoding="utf-8")


def _quiet(text: str) -> str:
    return f'<p class="quiet">{escape(text)}</p>'


def _folded(title: str, content: str) -> str:
    """HTML that is shown on a click."""
    return f"<details><summary>{escape(title)}</summary>\n{content}\n</details>"


def _flat(key: str, value: Json) -> list[tuple[str, str]]:
    """Every setting with its full name."""
    if isinstance(value, dict):
        return [line for inner, setting in value.items() for line in _flat(f"{key}.{inner}".lstrip("."), setting)]
    if isinstance(value, list):
        entries = (json.dumps(entry) if isinstance(entry, dict) else str(entry) for entry in value)
        return [(key, ", ".join(entries) or "–")]
    return [(key, "–" if value is None else str(value))]
