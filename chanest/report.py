"""The report of a run: tables in Markdown, figures, and one HTML page that holds everything and needs nothing else."""

from __future__ import annotations

import base64
import json
from html import escape
from pathlib import Path

from chanest.evaluation.files import check_folder, write_text
from chanest.evaluation.results import Results
from chanest.tables import Table, gap_tables, headline, interval_table, main_tables
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
    write_text(page, html(results, {"NMSE over the sweep": curves, "Accuracy against latency": cost}))
    return page


def markdown(results: Results) -> str:
    """The message and the tables of a run."""
    tables = [*main_tables(results), *gap_tables(results)]
    return "\n".join([f"{headline(results)}\n", *(table.markdown() for table in tables)])


def html(results: Results, figures: dict[str, Path]) -> str:
    """One page; figures are embedded. figures: what each shows -> PNG."""
    plan = results.plan
    parts = [
        f"<h1>{escape(plan.scenario.name)}</h1>",
        f'<p class="quiet">{escape(plan.scenario.description)}</p>',
        f'<p class="message">{escape(headline(results))}</p>',
    ]
    parts += [_figure(title, path) for title, path in figures.items()]
    parts += ["<h2>Tables</h2>", *(_table(table) for table in main_tables(results)), _explanation(results)]
    parts += [_table(table) for table in gap_tables(results)]
    parts += [_folded("All figures with their intervals", _table(interval_table(results)))]
    parts += ["<h2>Configuration</h2>", _table(_settings(results))]
    parts += [f'<p class="quiet">{escape(note)}</p>' for note in _notes(results)]
    manifest = json.dumps(results.manifest, indent=1, ensure_ascii=False)
    parts += [_folded("Manifest", f"<pre>{escape(manifest)}</pre>")]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(plan.scenario.name)}: channel estimators compared</title>",
            f"<style>{_STYLE}</style></head><body>",
            *parts,
            "</body></html>\n",
        ]
    )


def _figure(title: str, path: Path) -> str:
    image = base64.b64encode(path.read_bytes()).decode()
    return f'<h2>{escape(title)}</h2>\n<img alt="{escape(title)}" src="data:image/png;base64,{image}">'


def _table(table: Table) -> str:
    last = len(table.lines) - table.bounds

    def line(number: int, cells: tuple[str, ...]) -> str:
        look = ' class="bound"' if number >= last else ' class="best"' if number == 0 and table.bounds else ""
        return f"<tr{look}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"

    heading = "".join(f"<th>{escape(text)}</th>" for text in table.heading)
    lines = "\n".join(line(number, cells) for number, cells in enumerate(table.lines))
    head = f"<thead><tr>{heading}</tr></thead>" if any(table.heading) else ""
    return f'<div class="wide"><table><caption>{escape(table.title)}</caption>{head}<tbody>\n{lines}\n</tbody></table></div>'


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>\n{content}\n</details>"


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
