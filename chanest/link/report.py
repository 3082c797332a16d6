"""Tables and one HTML page of a link."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape
from pathlib import Path

from chanest.link.plan import BOUNDS, ErrVar
from chanest.link.results import TARGET, LinkResults, LinkRow, label
from vlista_core.files import check_folder, write_text
from vlista_core.page import figure_html, folded, page_html, quiet, table_html
from vlista_core.tables import Table, decibels, signed

_GENIE = "genie-angles"


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
    """The message of a run in a sentence or two."""
    told: list[tuple[str, ErrVar]] = [
        entry for entry in results.receivers() if entry[0] not in BOUNDS and results.needed_snr(*entry) is not None
    ]
    if not told:
        return f"No receiver reaches {TARGET:.0%} block errors at the SNRs of this run."
    best = told[0]
    needed = results.needed_snr(*best)
    words = f"{label(*best)} needs the least SNR for {TARGET:.0%} block errors, {decibels(needed)} dB"
    beyond = [
        f"{signed(_gap(results, name, best))} dB from {label(name, 'estimated')}"
        for name in (*BOUNDS[::-1], "ls")
        if name != best[0] and _gap(results, name, best) is not None
    ]
    return f"{words}{': ' if beyond else ''}{', '.join(beyond)}."


def _gap(results: LinkResults, name: str, best: tuple[str, ErrVar]) -> float | None:
    mine, other = results.needed_snr(*best), results.needed_snr(name)
    return None if mine is None or other is None else mine - other


def tables(results: LinkResults) -> list[Table]:
    """The SNR that each receiver needs with its BLER, its spectral efficiency, and what err_var is worth."""
    made = [_needed_table(results), _rate_table(results, "BER", lambda row: _rate(row.ber))]
    made.append(_rate_table(results, "Bits a resource element, training included", lambda row: f"{row.efficiency:.2f}"))
    return [*made, _err_var_table(results)] if set(results.plan.err_var) == {"estimated", "zero"} else made


def _needed_table(results: LinkResults) -> Table:
    plan = results.plan
    snrs = sorted(plan.snr_db)
    lines = []
    for entry in results.receivers():
        needed, low, high = (results.needed_snr(*entry, field=field) for field in ("bler", "bler_low", "bler_high"))
        between = "–" if low is None or high is None else f"{decibels(low)} to {decibels(high)}"
        nmse = {row.snr_db: row.channel_nmse_db for row in results.curve(*entry)}[snrs[len(snrs) // 2]]
        rates = (_rate(row.bler) for row in results.curve(*entry))
        lines.append(
            (_name(entry), decibels(needed), between, signed(_from_genie(results, needed)), decibels(nmse), *rates)
        )
    heading = ("", f"SNR for {TARGET:.0%}", "95 %", "from genie (b)", f"NMSE of G at {snrs[len(snrs) // 2]:g} dB")
    title = (
        f"{plan.scenario.name}: BLER of {plan.blocks:,} blocks at each SNR (dB), and the SNR that {TARGET:.0%} takes"
    )
    return Table(title, heading + tuple(f"{snr:g}" for snr in snrs), tuple(lines), _bounds(results))


def _from_genie(results: LinkResults, needed: float | None) -> float | None:
    genie = results.needed_snr(_GENIE)
    return None if needed is None or genie is None else needed - genie


def _rate_table(results: LinkResults, title: str, shown: Callable[[LinkRow], str]) -> Table:
    lines = tuple((_name(entry), *map(shown, results.curve(*entry))) for entry in results.receivers())
    return Table(title, ("", *(f"{snr:g}" for snr in sorted(results.plan.snr_db))), lines, _bounds(results))


def _err_var_table(results: LinkResults) -> Table:
    """Blocks lost with err_var and without, at the same seeds, summed over the SNRs."""
    lines = []
    for name, mode in results.receivers():
        if mode == "estimated" and name != "perfect":
            lost = [sum(row.bler * row.blocks for row in results.curve(name, each)) for each in ("estimated", "zero")]
            snrs = [results.needed_snr(name, each) for each in ("estimated", "zero")]
            gain = None if snrs[0] is None or snrs[1] is None else snrs[1] - snrs[0]
            lines.append((label(name, mode), *(f"{each:.0f}" for each in lost), signed(gain)))
    heading = ("", "blocks lost", "with err_var 0", f"dB saved at {TARGET:.0%}")
    return Table(
        "What err_var is worth: the same blocks with the variance of the errors and without", heading, tuple(lines)
    )


def _bounds(results: LinkResults) -> int:
    return sum(name in BOUNDS for name, _ in results.receivers())


def _name(entry: tuple[str, ErrVar]) -> str:
    return label(*entry) + (" (bound)" if entry[0] in BOUNDS else "")


def _rate(value: float) -> str:
    return f"{value:.3f}" if value >= 0.0095 else "0" if value == 0 else f"{value:.1e}"


def _html(results: LinkResults, figure: Path) -> str:
    plan = results.plan
    code = f"{plan.modulation}, code rate {plan.rate:g}, {plan.streams} stream{'s' if plan.streams > 1 else ''}"
    caption = (
        f"{code}; a block has {plan.scenario.frontend.frames} training symbols and {plan.data_symbols} data symbols on "
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
