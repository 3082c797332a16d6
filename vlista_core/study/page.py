"""The page of a folder: tables in Markdown, rows as CSV, figures, and one HTML file that holds everything by itself."""

import base64
import json
from collections import Counter
from html import escape
from pathlib import Path

import pandas as pd

from vlista_core.files import replacing, write_text
from vlista_core.study.base import Figure, Study
from vlista_core.study.store import Provenance, Read, Registry, holds_study, read_study
from vlista_core.study.tables import Table
from vlista_core.tensorfile import Json

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
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style></head><body>
<h1>{title}</h1>"""


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
    parts = [_HEAD.format(title=escape(title), style=_STYLE)]
    for place, read in found:
        heading = read.study.title()
        parts += [] if heading == title else [f"<h2>{escape(heading)}</h2>"]
        parts += _section(place, read)
    page = folder / "report.html"
    write_text(page, "\n".join([*parts, "</body></html>\n"]))
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
    parts = [f'<p class="message">{escape(message)}</p>'] if message else []
    parts += [_quiet(f"{study.explanation(frame)} {done}"), *map(_figure, study.figures(frame, folder)), first]
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
    """A PNG, embedded, under its title; the caption stands below it."""
    image = base64.b64encode(figure.path.read_bytes()).decode()
    title = escape(figure.title)
    shown = f'<h3>{title}</h3>\n<img alt="{title}" src="data:image/png;base64,{image}">'
    return f"{shown}\n{_quiet(figure.caption)}" if figure.caption else shown


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
