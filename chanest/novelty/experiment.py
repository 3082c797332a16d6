"""How well is a change noticed, by SNR and number of frames, and how often is there an alarm where nothing has changed?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor

from chanest.bases.estimator import ChannelEstimator
from chanest.fit import Report, silent
from chanest.novelty.changes import change_names, changed_frames, get_change
from chanest.novelty.detector import NoveltyDetector
from chanest.novelty.scores import get_score
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.weights import get_estimator
from vlista_core.files import read_json, write_json
from vlista_core.metrics import auroc
from vlista_core.problems import check_count
from vlista_core.provenance import environment, now
from vlista_core.tensorfile import Json

HOME = "home"
"""In the place of a change: nothing has changed."""
LENGTHS = (1, 5, 10, 20, 50)
_BLOCK = 500


@dataclass(frozen=True)
class Row:
    """Streams of one length at one SNR."""

    score: str
    change: str
    snr_db: float
    frames: int
    """In a stream."""
    streams: int
    auroc: float | None
    """Probability that a changed stream has a larger T² than one from home; None at home."""
    median_p: float
    alarms: float
    """Share of streams whose p-value is at most the level."""
    median_t_test: float | None
    """Median p-value of the paper's t-test; None where a score has several features or a stream one frame."""


@dataclass(frozen=True)
class Experiment:
    """Rows, and what they were made with."""

    settings: dict[str, Json]
    rows: tuple[Row, ...]

    def write(self, path: Path) -> None:
        """As JSON."""
        write_json(path, {**self.settings, "rows": [asdict(row) for row in self.rows]})

    @classmethod
    def read(cls, path: Path) -> Self:
        """A file of `write`, or a ValueError that names it."""
        content = read_json(path)
        rows = content.pop("rows", None)
        try:
            return cls(content, tuple(Row(**row) for row in cast(list[dict[str, Any]], rows)))
        except TypeError:
            raise ValueError(f"{path} holds no rows of a novelty experiment") from None

    @property
    def level(self) -> float:
        """Of false alarms, as asked for."""
        return cast(float, self.settings["level"])

    def values(self, column: Callable[[Row], object]) -> list[Any]:
        """The different values of a column, in the order of the rows."""
        return list(dict.fromkeys(column(row) for row in self.rows))

    def row(self, score: str, change: str, snr_db: float, frames: int) -> Row | None:
        """The one row of these, if there is one."""
        wanted = (score, change, snr_db, frames)
        return next((row for row in self.rows if (row.score, row.change, row.snr_db, row.frames) == wanted), None)


def run_experiment(
    problem: ChannelProblem,
    scores: Sequence[str] = ("antennas",),
    *,
    estimator: str | None = None,
    changes: Sequence[str] | None = None,
    snr_db: Sequence[float] = (10.0,),
    lengths: Sequence[int] = LENGTHS,
    frames: int = 4000,
    home_frames: int = 10_000,
    reference_frames: int = 4000,
    level: float = 0.05,
    seed: int = 1,
    report: Report = silent,
) -> Experiment:
    """Test frames from home and of every change (None: all there are), cut into streams of each length.

    frames: of each change; home_frames: with nothing changed; reference_frames: validation frames that a detector is fitted on.
    estimator: in place of each score's own.
    """
    names = change_names(problem.scenario) if changes is None else list(changes)
    for name in names:
        get_change(name, problem.scenario)
    for length in lengths:
        check_count("lengths", length)
    for what, count in (("frames", frames), ("home_frames", home_frames)):
        check_count(what, count, least=max(lengths, default=1))
    made = {score: get_estimator(estimator or get_score(score).estimator, problem) for score in scores}
    rows: list[Row] = []
    for number, score in enumerate(scores):
        for place, snr in enumerate(snr_db):
            done = number * len(snr_db) + place
            rows += _at_one_snr(
                problem, score, made[score], names, snr, lengths, (frames, home_frames, reference_frames), level, seed,
                lambda share, words, done=done: report(  # type: ignore[misc]
                    (done + share) / (len(scores) * len(snr_db)), words
                ),
            )  # fmt: skip
    settings: dict[str, Json] = {
        "scenario": problem.scenario.name, "channel_hash": problem.scenario.channel_hash(),
        "estimators": {score: estimator.name for score, estimator in made.items()}, "level": level, "frames": frames,
        "home_frames": home_frames, "reference_frames": reference_frames, "seed": seed, "date": now(), **environment(),
    }  # fmt: skip
    return Experiment(settings, tuple(rows))


def _at_one_snr(
    problem: ChannelProblem,
    score: str,
    estimator: ChannelEstimator,
    changes: Sequence[str],
    snr_db: float,
    lengths: Sequence[int],
    counts: tuple[int, int, int],
    level: float,
    seed: int,
    report: Report,
) -> list[Row]:
    frames, home_frames, reference_frames = counts
    total = frames * len(changes) + home_frames + reference_frames
    detector = NoveltyDetector.fit(
        problem, score, estimator=estimator, snr_db=(snr_db,), frames=reference_frames, level=level, seed=seed,
        report=lambda share, words: report(share * reference_frames / total, f"{score}, {words}"),
    )  # fmt: skip
    done, home, rows = reference_frames, dict[int, Tensor](), list[Row]()
    for name in (HOME, *changes):
        parts, count = [], home_frames if name == HOME else frames
        for start in range(0, count, _BLOCK):
            batch = _frames(problem, name, start, min(_BLOCK, count - start), snr_db, seed)
            parts.append(detector.whiten(batch.y, batch.phi, batch.noise_var))
            done += len(batch)
            report(done / total, f"{score}, {name} at {snr_db:g} dB")
        white = torch.cat(parts)
        for length in lengths:
            row, statistic = _row(detector, score, name, snr_db, _streams(white, length), home.get(length))
            home.setdefault(length, statistic)
            rows.append(row)
    return rows


def _row(
    detector: NoveltyDetector, score: str, change: str, snr_db: float, streams: Tensor, home: Tensor | None
) -> tuple[Row, Tensor]:
    """A row from whitened streams [streams, k, features], and their T²."""
    length = streams.shape[1]
    statistic, p_values = detector.judge(streams, [snr_db] * length)
    t_test = None
    if length > 1 and streams.shape[2] == 1:
        t_test = float(torch.tensor(detector.t_tests(streams, [snr_db] * length)).median())
    found = Row(
        score, change, snr_db, length, len(streams), None if home is None else auroc(home, statistic),
        float(p_values.median()), float((p_values <= detector.level).double().mean()), t_test,
    )  # fmt: skip
    return found, statistic


def _frames(problem: ChannelProblem, name: str, start: int, count: int, snr_db: float, seed: int) -> ChannelBatch:
    if name == HOME:
        return problem.sample(count, seed=seed, split="test", start=start, snr_db=snr_db)
    return changed_frames(problem, name, count, seed=seed, start=start, snr_db=snr_db)


def _streams(white: Tensor, length: int) -> Tensor:
    """Consecutive frames: [frames, features] -> [streams, length, features]."""
    count = len(white) // length
    return white[: count * length].reshape(count, length, -1)
