"""Tables and one HTML page of a link."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape
from pathlib import Path

from chanest.bounds.genie import GenieAngles
from chanest.link.plan import BOUNDS
from chanest.link.results import TARGET, LinkResults, LinkRow, label
from vlista_core.files import check_folder, write_text
from vlista_core.page import figure_html, folded, page_html, quiet, table_html
from vlista_core.tables import Table, decibels, signed


def write_link_report(results: LinkResults, folder: Path | str) -> Path:
    """bler_vs_snr.png, table.md and report.html in `folder`; returns the path of the page."""
    from chanest.plotting import draw_link

    folder = Path(folder)
    check_folder(folder)
    figure = folder / "bler_vs_snr.png"
    draw_link(results, figure)
    write_text(
        folder / "table.md", "\n".join([f"{headline(results)}\n", *(each.markdown() for each in tables(results))])
    )
    page = folder / "report.html"
    write_text(page, _html(results, figure))
    return page


def headline(results: LinkResults) -> str:
    """The message of a run in a sentence."""
    mode = results.plan.err_var[0]
    needed = {name: snr for name in _names(results) if (snr := results.needed_snr(name, mode)) is not None}
    best = next((name for name in needed if name not in BOUNDS), None)
    if best is None:
        return f"No receiver reaches {TARGET:.0%} block errors at the SNRs of this run."
    beyond = [
        f"{signed(needed[best] - needed[name])} dB from {label(name)}"
        for name in (*BOUNDS[::-1], "ls")
        if name in needed and name != best
    ]
    words = f"{label(best)} needs the least SNR for {TARGET:.0%} block errors, {decibels(needed[best])} dB"
    return f"{words}{': ' if beyond else ''}{', '.join(beyond)}."


def tables(results: LinkResults) -> list[Table]:
    """The SNR that each receiver needs with its BLER, its BER and spectral efficiency, and what err_var is worth."""
    made = [_needed_table(results), _rate_table(results, "BER", lambda row: _rate(row.ber))]
    made.append(_rate_table(results, "Bits a resource element, training included", lambda row: f"{row.efficiency:.2f}"))
    return [*made, _err_var_table(results)] if len(results.plan.err_var) == 2 else made


def _needed_table(results: LinkResults) -> Table:
    plan, mode = results.plan, results.plan.err_var[0]
    snrs = sorted(plan.snr_db)
    middle = len(snrs) // 2
    genie = results.needed_snr(GenieAngles.name, mode)
    lines = []
    for name in _names(results):
        curve = results.curve(name, mode)
        needed, low, high = (results.needed_snr(name, mode, field=field) for field in ("bler", "bler_low", "bler_high"))
        between = "–" if low is None or high is None else f"{decibels(low)} to {decibels(high)}"
        gap = None if needed is None or genie is None else needed - genie
        shown = (decibels(needed), between, signed(gap), decibels(curve[middle].channel_nmse_db))
        lines.append((_shown(name), *shown, *(_rate(row.bler) for row in curve)))
    heading = ("", f"SNR for {TARGET:.0%}", "95 %", "from genie (b)", f"NMSE of G at {snrs[middle]:g} dB")
    title = (
        f"{plan.scenario.name}: BLER of {plan.blocks:,} blocks at each SNR (dB), and the SNR that {TARGET:.0%} takes"
    )
    return Table(title, heading + tuple(f"{snr:g}" for snr in snrs), tuple(lines), _bounds(results))


def _rate_table(results: LinkResults, title: str, shown: Callable[[LinkRow], str]) -> Table:
    mode = results.plan.err_var[0]
    lines = tuple((_shown(name), *map(shown, results.curve(name, mode))) for name in _names(results))
    return Table(title, ("", *(f"{snr:g}" for snr in sorted(results.plan.snr_db))), lines, _bounds(results))


def _err_var_table(results: LinkResults) -> Table:
    """Blocks lost with err_var and without, at the same seeds, over all SNRs."""
    lines = []
    for name in _names(results):
        if name != "perfect":
            lost = [sum(row.bler * row.blocks for row in results.curve(name, mode)) for mode in ("estimated", "zero")]
            told, blind = (results.needed_snr(name, mode) for mode in ("estimated", "zero"))
            gain = None if told is None or blind is None else blind - told
            lines.append(
                (_shown(name), *(f"{each:.0f}" for each in lost), decibels(told), decibels(blind), signed(gain))
            )
    heading = ("", "blocks lost", "with err_var 0", f"SNR for {TARGET:.0%}", "with err_var 0", "dB saved")
    title = (
        f"What err_var is worth: the same {results.plan.blocks * len(results.plan.snr_db):,} blocks with it and without"
    )
    return Table(title, heading, tuple(lines))


def _names(results: LinkResults) -> list[str]:
    """Receivers, best first, then the bounds."""
    return results.receivers(results.plan.err_var[0])


def _bounds(results: LinkResults) -> int:
    return sum(name in BOUNDS for name in _names(results))


def _shown(name: str) -> str:
    return label(name) + (" (bound)" if name in BOUNDS else "")


def _rate(value: float) -> str:
    return f"{value:.3f}" if value >= 0.0095 else "0" if value == 0 else f"{value:.1e}"


def _html(results: LinkResults, figure: Path) -> str:
    plan = results.plan
    code = f"{plan.modulation}, code rate {plan.rate:g}, {plan.streams} stream{'s' if plan.streams > 1 else ''}"
    caption = (
        f"{code}; a block has {plan.scenario.frontend.pilots} training symbols and {plan.data_symbols} data symbols on "
        f"{plan.subcarriers} subcarriers, {plan.information_bits} information bits in one codeword of the 5G LDPC code. "
        "Every receiver has the same channels, beams, bits and noise. SNR is that of one antenna and one stream."
    )
    parts = [
        f"<h1>{escape(plan.scenario.name)}: a coded link</h1>",
        quiet(plan.scenario.description),
        f'<p class="message">{escape(headline(results))}</p>',
        figure_html("Block error rate", figure, caption=caption),
        "<h2>Tables</h2>",
        *(table_html(table) for table in tables(results)),
    ]
    notes = results.manifest.get("notes")
    parts += [quiet(str(note)) for note in notes] if isinstance(notes, list) else []
    manifest = json.dumps(results.manifest, indent=1, ensure_ascii=False)
    parts.append(folded("Manifest", f"<pre>{escape(manifest)}</pre>"))
    return page_html(f"{plan.scenario.name}: block error rates of a Sionna link", parts)
