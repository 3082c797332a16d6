"""What else a report shows: runs of other commands in folders of the run, link/, novelty/ and tracking/."""

from __future__ import annotations

from html import escape
from pathlib import Path

from vlista_core.page import figure_html, folded, table_html
from vlista_core.tables import Table


def further_sections(folder: Path) -> list[str]:
    """HTML of the runs that are there: `chanest link … -o RUN/link`, `chanest novelty … -o RUN/novelty` and the like."""
    return [*_link(folder / "link"), *_novelty(folder / "novelty"), *_tracking(folder / "tracking")]


def _link(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    from chanest.link.report import headline, tables
    from chanest.link.results import LinkResults

    results = LinkResults.read(folder)
    return _section("Block errors of a link", headline(results), folder / "bler_vs_snr.png", tables(results))


def _novelty(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    from chanest.novelty.experiment import Experiment
    from chanest.novelty.tables import headline, tables

    found = Experiment.read(folder / "results.json")
    return _section("Channels that are new", headline(found), folder / "novelty.png", tables(found))


def _tracking(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    from chanest.evaluation.tracking import Tracking

    found = Tracking.read(folder)
    return _section("Snapshots over time", "", folder / "nmse_by_snapshot.png", found.tables())


def _section(title: str, message: str, figure: Path, tables: list[Table]) -> list[str]:
    """A figure under its title, the message, the first table, the others folded."""
    parts = [figure_html(title, figure)] if figure.is_file() else [f"<h2>{escape(title)}</h2>"]
    if message:
        parts.append(f'<p class="message">{escape(message)}</p>')
    first, *others = tables
    parts.append(table_html(first))
    return parts + ([folded("More tables", "\n".join(table_html(table) for table in others))] if others else [])
