"""Tables of a novelty experiment: changes in the lines, number of frames or SNR in the columns."""

from __future__ import annotations

from collections.abc import Callable

from chanest.novelty.changes import CHANGES
from chanest.novelty.experiment import HOME, Experiment, Row
from vlista_core.tables import Table

STREAM = 20
"""Frames of a stream where only one length is shown, or the longest there is."""


def middle(experiment: Experiment) -> tuple[float, int]:
    """The SNR and the length that a table of one SNR or one length shows: 10 dB or the nearest, 20 frames or the nearest."""
    snrs, lengths = experiment.values(lambda row: row.snr_db), experiment.values(lambda row: row.frames)
    return min(snrs, key=lambda snr: abs(snr - 10.0)), min(lengths, key=lambda length: abs(length - STREAM))


def tables(experiment: Experiment) -> list[Table]:
    """AUROC and p-values by frames and by SNR for every score, and the false alarms."""
    snrs, lengths = experiment.values(lambda row: row.snr_db), experiment.values(lambda row: row.frames)
    snr_db, length = middle(experiment)
    found = []
    for score in experiment.values(lambda row: row.score):
        at, of = f"at {snr_db:g} dB SNR", f"of {length} frames"
        by_frames = [(snr_db, each) for each in lengths]
        by_snr = [(each, length) for each in snrs]
        found.append(_changes(experiment, score, by_frames, f"{score}: AUROC of streams {at}", _auroc))
        found.append(_changes(experiment, score, by_frames, f"{score}: median p-value of streams {at}", _p_value))
        if any(row.median_t_test is not None for row in experiment.rows if row.score == score):
            title = f"{score}: median p-value of the two-sample t-test {at}"
            found.append(_changes(experiment, score, by_frames, title, _t_test))
        if len(snrs) > 1:
            found.append(_changes(experiment, score, by_snr, f"{score}: AUROC of streams {of}", _auroc))
            found.append(_changes(experiment, score, by_snr, f"{score}: median p-value of streams {of}", _p_value))
        found.append(_false_alarms(experiment, score))
    return [table for table in found if table.lines]


def headline(experiment: Experiment) -> str:
    """The message in two sentences: the change that is hardest to notice, and the false alarms."""
    snr_db, length = middle(experiment)
    said = []
    for score in experiment.values(lambda row: row.score):
        rows = [row for row in experiment.rows if (row.score, row.snr_db, row.frames) == (score, snr_db, length)]
        away = [row for row in rows if row.auroc is not None]
        words = f"{score}: from {length} frames at {snr_db:g} dB"
        if away:
            hardest = min(away, key=lambda row: row.auroc or 0.0)
            words += f" the change that is hardest to tell is {hardest.change} with an AUROC of {hardest.auroc:.3f}"
        for row in rows:
            if row.change == HOME:
                words += f"; false alarms {row.alarms:.1%} of {row.streams:,} streams, {experiment.level:.1%} asked for"
        said.append(f"{words}.")
    return " ".join(said)


def _changes(
    experiment: Experiment, score: str, points: list[tuple[float, int]], title: str, text: Callable[[Row], str]
) -> Table:
    names = [name for name in experiment.values(lambda row: row.change) if name != HOME]
    lines = []
    for name in names:
        rows = [experiment.row(score, name, *point) for point in points]
        lines.append((CHANGES[name].words, *("–" if row is None else text(row) for row in rows)))
    over_snr = len({snr for snr, _ in points}) > 1
    heading = [f"{snr:g} dB".replace("-", "−") if over_snr else _frames(length) for snr, length in points]
    return Table(title, ("change", *heading), tuple(lines))


def _false_alarms(experiment: Experiment, score: str) -> Table:
    """Shares of streams from home with an alarm, and twice the standard error that as many have where the level is kept."""
    lengths = experiment.values(lambda row: row.frames)
    lines = []
    for snr in experiment.values(lambda row: row.snr_db):
        rows = [experiment.row(score, HOME, snr, length) for length in lengths]
        lines.append(
            (f"{snr:g} dB".replace("-", "−"), *("–" if row is None else _alarms(row, experiment.level) for row in rows))
        )
    title = f"{score}: false alarms at a level of {experiment.level:.1%}, and two standard errors"
    return Table(title, ("SNR", *(_frames(length) for length in lengths)), tuple(lines))


def _frames(length: int) -> str:
    return f"{length} frame{'s' if length > 1 else ''}"


def _auroc(row: Row) -> str:
    return "–" if row.auroc is None else f"{row.auroc:.3f}"


def _p_value(row: Row) -> str:
    return f"{row.median_p:.2g}"


def _t_test(row: Row) -> str:
    return "–" if row.median_t_test is None else f"{row.median_t_test:.2g}"


def _alarms(row: Row, level: float) -> str:
    error = 2 * (level * (1 - level) / row.streams) ** 0.5
    return f"{row.alarms:.1%} ± {error:.1%}"
