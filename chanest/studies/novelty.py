"""How well is a change noticed, by SNR and number of frames, and how often is there an alarm where nothing has changed?"""

from functools import lru_cache, partial
from pathlib import Path
from typing import ClassVar

import pandas as pd
import torch
from torch import Tensor

from chanest.novelty.changes import CHANGES, changed_frames, get_change
from chanest.novelty.detector import NoveltyDetector
from chanest.novelty.scores import get_score
from chanest.studies.common import ChannelStudy, level_of, load, planned_weights, values_of
from chanest.weights import get_estimator
from vlista_core.metrics import auroc
from vlista_core.problems import check_count
from vlista_core.study import Cell, Context, Figure, Row, Table
from vlista_core.study.measuring import finite
from vlista_core.study.tables import number
from vlista_core.tensorfile import Json

HOME = "home"
"""In the place of a change: nothing has changed."""
LENGTHS = (1, 5, 10, 20, 50)
_STREAM, _SNR = 20, 10.0
"""What a table of one length and of one SNR shows, or the nearest there is."""
_BLOCK = 500
_COLUMNS = (
    ("AUROC of streams", "auroc", ".3f"),
    ("median p-value of streams", "median_p", ".2g"),
    ("median p-value of the two-sample t-test", "median_t_test", ".2g"),
)
"""Words, column and format of the tables on changes."""
Point = tuple[float, int]
"""An SNR and a number of frames."""


class NoveltyStudy(ChannelStudy):
    """Test frames from home and of every change, cut into streams of each length, told apart by each score."""

    name: ClassVar[str] = "novelty"
    heading: ClassVar[str] = "channels that are new"
    summary: ClassVar[str] = (
        "AUROC: the probability that a changed stream has a larger T² than one from home. The p-value of a stream is the share "
        "of home streams with a larger T²; an alarm is a p-value of at most the level."
    )
    growing: ClassVar[frozenset[str]] = frozenset({"scores", "changes", "snr_db"})

    scores: tuple[str, ...] = ("antennas",)
    changes: tuple[str, ...] = ()
    estimator: str | None = None
    """In place of each score's own."""
    snr_db: tuple[float, ...] = (_SNR,)
    lengths: tuple[int, ...] = LENGTHS
    """Frames of a stream."""
    frames: int = 4000
    """Of each change."""
    home_frames: int = 10_000
    reference_frames: int = 4000
    """Validation frames that a detector is fitted on, at each SNR."""
    level: float = 0.05
    """Of false alarms."""

    def check(self) -> None:
        super().check()
        for name in self.changes:
            get_change(name, self.scenario)
        for length in self.lengths:
            check_count("lengths", length)
        for what, count in (("frames", self.frames), ("home_frames", self.home_frames)):
            check_count(what, count, least=max(self.lengths, default=1))
        for score in self.scores:
            estimator = get_estimator(self.estimator_of(score), self.problem, guarded=False, substitute=False)
            NoveltyDetector.check(self.problem, score, estimator, frames=self.reference_frames, level=self.level)

    def estimator_of(self, score: str) -> str:
        """The name of the estimator whose frames are judged."""
        return self.estimator or get_score(score).estimator

    def cells(self) -> list[Cell]:
        """SNR by SNR, so that all changes share the detector of one; home first."""
        self.check()
        weights = {score: planned_weights(self.estimator_of(score), self.problem) for score in self.scores}
        common: Cell = {"scenario": self.scenario.name, "seed": self.seed}
        return [
            {
                "score": score, "change": change, "snr_db": snr, "name": self.estimator_of(score), **common,
                "weights": weights[score],
            }
            for score in self.scores
            for snr in self.snr_db
            for change in (HOME, *self.changes)
        ]  # fmt: skip

    def cell_id(self, cell: Cell) -> str:
        return f"{cell['score']}.{cell['change']}.snr_{cell['snr_db']:g}"

    def run(self, cell: Cell, context: Context) -> Row:
        """What the streams of each length say: {"streams": [{"frames": 1, "auroc": …}, …]}."""
        facts = load(cell, self.problem)[1]
        change, snr = str(cell["change"]), level_of(cell)
        one = self.model_copy(update={"scores": (str(cell["score"]),), "changes": (), "snr_db": (snr,)})
        detector, home = _home(one, str(cell["weights"]))
        white = home if change == HOME else _white(one, detector, change)
        streams: list[Json] = []
        for length in self.lengths:
            usual = None if change == HOME else detector.judge(_cut(home, length), [snr] * length)[0]
            streams.append(_figures(detector, _cut(white, length), snr, usual))
        return {"streams": streams, **facts}

    def streams(self, frame: pd.DataFrame) -> pd.DataFrame:
        """One line per score, change, SNR and number of frames."""
        keys = ["score", "change", "snr_db"]
        figures = ["frames", "streams", "auroc", "median_p", "alarms", "median_t_test"]
        each = frame.reindex(columns=[*keys, "streams"]).explode("streams", ignore_index=True)
        return each[keys].join(pd.json_normalize(each["streams"])).reindex(columns=keys + figures)

    def middle(self) -> Point:
        """The SNR and the number of frames that a table of one of them shows."""
        snr = min(self.snr_db, key=lambda snr: abs(snr - _SNR))
        return snr, min(self.lengths, key=lambda length: abs(length - _STREAM))

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        """AUROC and p-values by frames and by SNR for every score, and the false alarms."""
        streams, tables = self.streams(frame), []
        snr_db, length = self.middle()
        at, of = f"at {snr_db:g} dB SNR", f"of {length} frames"
        by_frames = [(snr_db, each) for each in self.lengths]
        by_snr = [(snr, length) for snr in values_of(streams, "snr_db")]
        for score in dict.fromkeys(streams["score"]):
            own = streams[streams["score"] == score]
            for words, column, form in _COLUMNS:
                tables.append(_table(own, by_frames, f"{score}: {words} {at}", column, form))
            if len(by_snr) > 1:
                for words, column, form in _COLUMNS[:2]:
                    tables.append(_table(own, by_snr, f"{score}: {words} {of}", column, form))
            tables.append(self._false_alarms(own, score))
        return [table for table in tables if table.lines]

    def _false_alarms(self, own: pd.DataFrame, score: str) -> Table:
        """Shares of streams from home with an alarm, and twice the standard error that as many have where the level is kept."""
        home, spread = own[own["change"] == HOME], self.level * (1 - self.level)
        text = [
            f"{alarms:.1%} ± {2 * (spread / streams) ** 0.5:.1%}"
            for alarms, streams in zip(home["alarms"], home["streams"], strict=True)
        ]
        wide = home.assign(text=text).pivot(index="snr_db", columns="frames", values="text")
        lines = [(f"{snr:g} dB".replace("-", "−"), *row) for snr, row in zip(wide.index, wide.to_numpy(), strict=True)]
        title = f"{score}: false alarms at a level of {self.level:.1%}, and two standard errors"
        return Table.of(title, ("SNR", *map(_frames, sorted(set(home["frames"])))), lines)

    def headline(self, frame: pd.DataFrame) -> str:
        """The change that is hardest to notice, and the false alarms."""
        streams, (snr_db, length), said = self.streams(frame), self.middle(), []
        here = streams[(streams["snr_db"] == snr_db) & (streams["frames"] == length)]
        for score in dict.fromkeys(here["score"]):
            rows = here[here["score"] == score]
            words = f"{score}: from {length} frames at {snr_db:g} dB"
            away = rows[rows["auroc"].notna()]
            if len(away):
                hardest = away.loc[away["auroc"].astype(float).idxmin()]
                words += f" the change that is hardest to tell is {hardest['change']} with an AUROC of {hardest['auroc']:.3f}"
            for row in rows[rows["change"] == HOME].itertuples():
                words += f"; false alarms {row.alarms:.1%} of {row.streams:,} streams, {self.level:.1%} asked for"
            said.append(f"{words}.")
        return " ".join(said)

    def figures(self, frame: pd.DataFrame, folder: Path) -> list[Figure]:
        from chanest.plotting.studies import draw_novelty

        if not self.changes:
            return []
        path = folder / "novelty.png"
        draw_novelty(self, self.streams(frame), path)
        return [Figure("Channels that are new", "", path)]


@lru_cache(maxsize=2)
def _home(study: NoveltyStudy, weights: str) -> tuple[NoveltyDetector, Tensor]:
    """The detector of one score at one SNR and whitened frames from home, kept from change to change: [frames, features]."""
    (score,) = study.scores
    detector = NoveltyDetector.fit(
        study.problem, score,
        estimator=get_estimator(study.estimator_of(score), study.problem, guarded=False, substitute=False),
        snr_db=study.snr_db,
        frames=study.reference_frames, level=study.level, seed=study.seed,
    )  # fmt: skip
    return detector, _white(study, detector, HOME)


def _white(study: NoveltyStudy, detector: NoveltyDetector, change: str) -> Tensor:
    """Whitened test frames of a change: [frames, features]."""
    count, parts = study.home_frames if change == HOME else study.frames, []
    for start in range(0, count, _BLOCK):
        draw = study.problem.sample if change == HOME else partial(changed_frames, study.problem, change)
        batch = draw(min(_BLOCK, count - start), seed=study.seed, start=start, snr_db=study.snr_db[0])
        parts.append(detector.whiten(batch.y, batch.phi, batch.noise_var))
    return torch.cat(parts)


def _cut(white: Tensor, length: int) -> Tensor:
    """Consecutive frames: [frames, features] -> [streams, length, features]."""
    count = len(white) // length
    return white[: count * length].reshape(count, length, -1)


def _figures(detector: NoveltyDetector, streams: Tensor, snr_db: float, home: Tensor | None) -> Row:
    """Of whitened streams [streams, k, features]. home: T² of streams from home; None where these are from home.

    median_t_test: of the paper's t-test; None where a score has several features or a stream one frame.
    """
    count, length, features = streams.shape
    statistic, p_values = detector.judge(streams, [snr_db] * length)
    t_test = None
    if length > 1 and features == 1:
        t_test = float(torch.tensor(detector.t_tests(streams, [snr_db] * length)).median())
    return {
        "frames": length,
        "streams": count,
        "auroc": None if home is None else finite(auroc(home, statistic)),
        "median_p": float(p_values.median()),
        "alarms": float((p_values <= detector.level).double().mean()),
        "median_t_test": t_test,
    }


def _table(own: pd.DataFrame, points: list[Point], title: str, column: str, form: str) -> Table:
    """A column for the changes of one score: a line per change, a column per point; no lines where it is empty."""
    away = own[(own["change"] != HOME) & bool(own[column].notna().any())]
    wide = away.pivot(index="change", columns=["snr_db", "frames"], values=column)
    lines = [
        (CHANGES[name].words, *(number(wide[point][name] if point in wide else None, form) for point in points))
        for name in dict.fromkeys(away["change"])
    ]
    over_snr = len({snr for snr, _ in points}) > 1
    heading = [f"{snr:g} dB".replace("-", "−") if over_snr else _frames(length) for snr, length in points]
    return Table.of(title, ("change", *heading), lines)


def _frames(length: int) -> str:
    return f"{length} frame{'s' if length > 1 else ''}"
