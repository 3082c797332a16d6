"""Tables of an evaluation, for the terminal, Markdown and HTML alike; estimators from best to worst, then the bounds."""

from __future__ import annotations

from chanest.evaluation.results import REFERENCE, Results, Row
from vlista_core.tables import Table, decibels, milliseconds, signed

_SYMBOLS = {"snr": "SNR", "pilots": "T", "chains": "chains", "bits": "bits"}


def main_tables(results: Results) -> list[Table]:
    """NMSE at every point, mean gap to the reference bound, latency and parameters; a table for each SNR of a sweep."""
    return [_main_table(results, snr) for snr in _panels(results)]


def gap_tables(results: Results) -> list[Table]:
    """The gap to the reference bound at every point; none without that bound."""
    if REFERENCE not in results.names("bound"):
        return []
    tables = []
    for snr in _panels(results):
        points = _points(results, snr)
        lines = [
            (name, *(signed(results.gap(name, *point)) for point in points), signed(results.mean_gap(name, snr)))
            for name in results.names("estimator", snr)
        ]
        title = f"Gap to {_reference_label(results)} (dB){_at(snr)}"
        tables.append(Table(title, ("estimator", *_headings(results, points), "mean"), tuple(lines)))
    return tables


def interval_table(results: Results) -> Table:
    """Every row with its interval and the other two definitions of NMSE."""
    heading = (
        "name",
        _SYMBOLS[results.plan.sweep],
        "SNR (dB)",
        "NMSE (dB)",
        "95 % interval",
        "mean",
        "median",
        "diverged",
    )
    lines = [
        (
            row.label, f"{row.value:g}", f"{row.snr_db:g}", decibels(row.nmse_db, 2),
            f"{decibels(row.nmse_low_db, 2)} … {decibels(row.nmse_high_db, 2)}", decibels(row.nmse_mean_db, 2),
            decibels(row.nmse_median_db, 2), str(row.diverged),
        )
        for row in results.rows
    ]  # fmt: skip
    title = (
        f"NMSE of {results.plan.channels:,} channels as a ratio of sums; mean and median of the ratios of the channels"
    )
    return Table(title, heading, tuple(lines))


def headline(results: Results) -> str:
    """The message in a sentence or two: who is best, how far from the bound, at what cost, and who is next."""
    names = results.names("estimator")
    if not names:
        return "Only bounds were evaluated."
    snr = results.plan.middle_snr()
    value = _points(results, snr)[-1][0]
    best, *others = (results.row(name, value, snr) for name in names)
    if best.nmse_db is None:
        return "No estimator gave finite results."
    gap = results.gap(best.name, value, snr)
    bound = (
        ""
        if gap is None
        else f", {abs(gap):.1f} dB {'above' if gap >= 0 else 'below'} the bound “{_reference_label(results)}”"
    )
    place = f"{snr:g} dB SNR" if results.plan.sweep == "snr" else f"{snr:g} dB SNR and {results.plan.sweep} = {value:g}"
    said = f"{best.label} is the most accurate: {decibels(best.nmse_db)} dB NMSE at {place}{bound}{_cost(best)}."
    if others and others[0].nmse_db is not None:
        said += f" Next is {others[0].label} with {decibels(others[0].nmse_db)} dB{_cost(others[0])}."
    return said


def _main_table(results: Results, snr: float | None) -> Table:
    points = _points(results, snr)
    lines = []
    names = [*results.names("estimator", snr), *results.names("bound", snr)]
    for name in names:
        rows = [results.row(name, *point) for point in points]
        first = rows[0]
        bound = first.kind == "bound"
        lines.append(
            (
                f"{first.label} (bound)" if bound else first.label,
                *(decibels(row.nmse_db) for row in rows),
                signed(results.mean_gap(name, snr)),
                *("–" if bound else milliseconds(time) for time in (first.ms_batch_1, first.ms_batch)),
                "–" if first.parameters is None else f"{first.parameters:,}",
            )
        )
    heading = ("estimator", *_headings(results, points), "gap (dB)", "ms alone", f"ms at {results.batch}", "parameters")
    title = f"{results.plan.scenario.name}: NMSE (dB){_at(snr)}, {results.plan.channels:,} test channels"
    return Table(title, heading, tuple(lines), bounds=len(results.names("bound")))


def _panels(results: Results) -> list[float | None]:
    return [None] if results.plan.sweep == "snr" else [*sorted(results.plan.snr_db)]


def _points(results: Results, snr: float | None) -> list[tuple[float, float]]:
    return sorted(point for point in results.plan.points() if snr in (None, point[1]))


def _headings(results: Results, points: list[tuple[float, float]]) -> list[str]:
    if results.plan.sweep == "snr":
        return [f"{snr:g} dB".replace("-", "−") for _, snr in points]
    return [f"{_SYMBOLS[results.plan.sweep]} {value:g}" for value, _ in points]


def _at(snr: float | None) -> str:
    return " by SNR" if snr is None else f" at {snr:g} dB SNR"


def _cost(row: Row) -> str:
    return "" if row.ms_batch is None else f", in {milliseconds(row.ms_batch)} ms a channel"


def _reference_label(results: Results) -> str:
    return next(row.label for row in results.rows if row.name == REFERENCE)
