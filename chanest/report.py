"""The report of a run: tables in Markdown, figures, and one HTML page that holds everything and needs nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from chanest.evaluation.calibration import calibration_parts
from chanest.evaluation.results import Results
from chanest.sections import further_sections
from chanest.tables import gap_tables, headline, interval_table, main_tables
from vlista_core.files import check_folder, write_text
from vlista_core.page import figure_html, folded, page_html, table_html
from vlista_core.tables import Table
from vlista_core.tensorfile import Json


def write_report(results: Results, folder: Path | str) -> Path:
    """table.md, the figures and report.html into `folder`; returns the path of the page."""
    from chanest.plotting import draw_accuracy_against_latency, draw_curves

    folder = Path(folder)
    check_folder(folder)
    curves, cost = folder / f"nmse_vs_{results.plan.sweep}.png", folder / "accuracy_vs_latency.png"
    draw_curves(results, curves)
    draw_accuracy_against_latency(results, cost)
    write_text(folder / "table.md", markdown(results))
    page = folder / "report.html"
    sections = [*calibration_parts(folder), *further_sections(folder)]
    write_text(page, html(results, {"NMSE over the sweep": curves, "Accuracy against latency": cost}, sections))
    return page


def markdown(results: Results) -> str:
    """The message and the tables of a run."""
    tables = [*main_tables(results), *gap_tables(results)]
    return "\n".join([f"{headline(results)}\n", *(table.markdown() for table in tables)])


def html(results: Results, figures: dict[str, Path], sections: Sequence[str] = ()) -> str:
    """One page; figures are embedded. figures: what each shows -> PNG; sections: HTML of what else the folder holds."""
    plan = results.plan
    parts = [
        f"<h1>{escape(plan.scenario.name)}</h1>",
        f'<p class="quiet">{escape(plan.scenario.description)}</p>',
        f'<p class="message">{escape(headline(results))}</p>',
    ]
    parts += [figure_html(title, path) for title, path in figures.items()]
    parts += ["<h2>Tables</h2>", *(table_html(table) for table in main_tables(results)), _explanation(results)]
    parts += [table_html(table) for table in gap_tables(results)]
    parts += [folded("All figures with their intervals", table_html(interval_table(results)))]
    parts += sections
    parts += ["<h2>Configuration</h2>", table_html(_settings(results))]
    parts += [f'<p class="quiet">{escape(note)}</p>' for note in _notes(results)]
    manifest = json.dumps(results.manifest, indent=1, ensure_ascii=False)
    parts += [folded("Manifest", f"<pre>{escape(manifest)}</pre>")]
    return page_html(f"{plan.scenario.name}: channel estimators compared", parts)


def _explanation(results: Results) -> str:
    machine = results.manifest.get("machine")
    threads = machine.get("torch_threads") if isinstance(machine, dict) else None
    return (
        '<p class="quiet">NMSE is the ratio of sums Σ‖ĥ − h‖² / Σ‖h‖², every estimator on the same channels, beams and noise. '
        "Gap: dB above the LMMSE that knows the angles, averaged over the columns. Times are per channel, warm, one call "
        f"on a single channel and on a batch of {results.batch}, with {threads} torch threads. Bounds know "
        "what no estimator can.</p>"
    )


def _settings(results: Results) -> Table:
    """Every setting of the scenario and the plan."""
    lines: list[tuple[str, ...]] = []
    for key, value in results.plan.to_json().items():
        lines += _flat(key, value)
    return Table("What was run", ("", ""), tuple(lines))


def _flat(key: str, value: Json) -> list[tuple[str, ...]]:
    if isinstance(value, dict):
        return [line for inner, setting in value.items() for line in _flat(f"{key}.{inner}", setting)]
    if isinstance(value, list):
        return [(key, ", ".join(str(entry) for entry in value) or "–")]
    return [(key, "–" if value is None else str(value))]


def _notes(results: Results) -> list[str]:
    notes = results.manifest.get("notes")
    return [str(note) for note in notes] if isinstance(notes, list) else []
