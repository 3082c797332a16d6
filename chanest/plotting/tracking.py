"""NMSE by snapshot of a track: with what earlier snapshots have shown (solid), without (dotted), and the bound (dashed)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chanest.plotting.evaluation import look_of
from vlista_core.plotting import DOTTED, Look, label_ends, new_figure

if TYPE_CHECKING:
    from chanest.evaluation.tracking import Tracking

_BOUND = Look("#333333", "", (0, (6, 2)))


def draw_tracking(tracking: Tracking, path: Path) -> None:
    """A panel for each SNR."""
    snrs = list(dict.fromkeys(curve.snr_db for curve in tracking.curves))
    tracks = tracking.manifest["tracks"]
    with new_figure(path, (4.9 * len(snrs) + 0.4, 5.0)) as figure:
        for axes, snr in zip(figure.subplots(1, len(snrs), squeeze=False)[0], snrs, strict=True):
            ends = []
            for curve in (curve for curve in tracking.curves if curve.snr_db == snr):
                own = _BOUND if curve.kind == "bound" else look_of(curve.name)
                line = DOTTED if curve.kind == "alone" else own.line if curve.kind == "bound" else "-"
                look = Look(own.colour, own.marker, line, strong=curve.kind == "tracked")
                snapshots = range(1, len(curve.nmse_db) + 1)
                axes.plot(
                    snapshots, curve.nmse_db, color=look.colour, ls=look.line, lw=look.width, marker=look.marker,
                    ms=0.7 * look.size,
                )  # fmt: skip
                ends.append((curve.nmse_db[-1], curve.label, look))
            axes.set_title(f"SNR {snr:g} dB")
            axes.set_xlabel("snapshot of the track")
            axes.set_ylabel("NMSE (dB)")
            axes.set_xticks(range(1, len(tracking.curves[0].nmse_db) + 1))
            axes.grid(alpha=0.25)
            label_ends(figure, axes, ends)
        figure.suptitle(f"What earlier snapshots are worth: {tracks} test tracks", fontsize=13)
