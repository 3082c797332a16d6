"""Do these frames still come from what the estimator was trained on? A test of a stream of frames with a level one can state.

Frames of the home scenario tell how the features of a score are spread at some SNRs; in between, mean and correlations are
interpolated, and the logarithms of deviations. A stream of k frames is judged by T² = ‖Σ z‖²/k, Hotelling's statistic of its
whitened features z, and its p-value is the share of streams, put together at random from other home frames, with a larger T².
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import torch
from scipy import stats
from torch import Tensor

from chanest.bases.chunks import in_chunks
from chanest.bases.estimator import ChannelEstimator
from chanest.bases.guard import Guarded
from chanest.fit import Report, silent
from chanest.novelty.scores import Score, Shape, get_score
from chanest.problem import AnyProblem, ChannelProblem, as_problem
from chanest.weights import get_estimator
from vlista_core.estimate import Measurement
from vlista_core.linalg import cholesky
from vlista_core.linops import LinearMap
from vlista_core.problems import check_count

LEAST_LEVEL = 1e-3
_NULL_STREAMS = 10_000
_BLOCK = 250
_MARGIN_DB = 0.5
"""How far outside the SNRs of the reference a frame may be."""
_FRAMES_A_FEATURE = 4
_RIDGE = 1e-4
"""Added to the diagonal of a correlation, against features that always go together."""


@dataclass(frozen=True)
class Verdict:
    """What a stream of frames says."""

    p_value: float
    """The probability of a T² this large or larger where nothing has changed."""
    novel: bool
    """Whether that is below the level of the detector."""
    statistic: float
    """T²."""
    scores: Tensor
    """How strange each frame is alone, ‖z‖² over the number of features, about 1 at home: [frames]."""


@dataclass(frozen=True)
class Reference:
    """The features of a score at one SNR, at home: moments of some frames, and others whitened with them."""

    snr_db: float
    mean: Tensor
    """[features]."""
    log_deviation: Tensor
    """[features]."""
    correlation: Tensor
    """[features, features]."""
    white: Tensor
    """Of mean zero, frames that have no part in the moments: [frames, features]."""

    @classmethod
    def of(cls, snr_db: float, features: Tensor) -> Self:
        """Moments from the first half of the frames, the rest whitened. features: [frames, features], float64."""
        half = len(features) // 2
        mean, deviation = features[:half].mean(0), features[:half].std(0)
        scaled = (features[:half] - mean) / deviation
        correlation = scaled.mT @ scaled / (half - 1) + _RIDGE * torch.eye(len(mean), dtype=features.dtype)
        white = whitened(features[half:], mean, deviation.log(), correlation)
        return cls(snr_db, mean, deviation.log(), correlation, white - white.mean(0))


class NoveltyDetector:
    """Tells a stream of frames from those of the home scenario, by a score of an estimator."""

    def __init__(
        self, score: Score, estimator: ChannelEstimator, shape: Shape, references: Sequence[Reference], level: float
    ) -> None:
        self.score, self.estimator, self.shape, self.level = score, estimator, shape, level
        self.references = sorted(references, key=lambda reference: reference.snr_db)
        self._null = lru_cache(maxsize=64)(self._draw_null)

    @classmethod
    def fit(
        cls,
        problem: AnyProblem,
        score: str = "antennas",
        *,
        estimator: ChannelEstimator | str | None = None,
        snr_db: Sequence[float] = (10.0,),
        frames: int = 4000,
        level: float = 0.05,
        seed: int = 0,
        report: Report = silent,
    ) -> Self:
        """Learn what is usual from validation draws of `problem`, the home scenario.

        estimator: trained there, or its name; None takes the score's own with the weights there are. snr_db: where the
        reference is taken, 5 dB apart or closer if the SNR varies; frames: at each, half of them for the moments; level: of
        false alarms.
        """
        if not snr_db or not all(math.isfinite(snr) for snr in snr_db):
            raise ValueError(f"snr_db must be one or more finite numbers, got {list(snr_db)}")
        problem, chosen = as_problem(problem), estimator or get_score(score).estimator
        if isinstance(chosen, str):
            chosen = get_estimator(chosen, problem, guarded=False, substitute=False)
        estimator = chosen
        if isinstance(estimator, Guarded):
            estimator = estimator.alone()  # a guard explains what is new
        made = cls.check(problem, score, estimator, frames=frames, level=level)
        levels = sorted(set(snr_db))
        for place, snr in enumerate(levels):
            found = []
            for start in range(0, frames, _BLOCK):
                count = min(_BLOCK, frames - start)
                batch = problem.sample(count, seed=seed, split="validation", start=start, snr_db=snr)
                found.append(made.features(batch.y, batch.phi, batch.noise_var))
                report((place + (start + count) / frames) / len(levels), f"home frames at {snr:g} dB")
            made.references.append(Reference.of(snr, torch.cat(found)))
        return made

    @classmethod
    def check(
        cls, problem: ChannelProblem, score: str, estimator: ChannelEstimator, *, frames: int, level: float
    ) -> Self:
        """A detector that has learned nothing yet, or a ValueError where it could not learn from so many frames."""
        if not LEAST_LEVEL <= level < 1.0:
            raise ValueError(f"level must be at least {LEAST_LEVEL:g} and less than 1, got {level!r}")
        check_count("frames", frames, least=4)
        if estimator.signal_length != problem.signal_length:
            raise ValueError(
                f"the {estimator.name} was made for channels of {estimator.signal_length} entries; "
                f"{problem.scenario.name} has {problem.signal_length}"
            )
        rx, tx = problem.arrays
        made = cls(get_score(score), estimator, (problem.subcarriers, tx.ports, rx.ports), (), level)
        one = problem.sample(1, seed=0, split="validation", snr_db=10.0)
        features = made.features(one.y, one.phi, one.noise_var).shape[1]
        if frames < _FRAMES_A_FEATURE * features:
            allowed = (
                f"at least {_FRAMES_A_FEATURE * features}, {_FRAMES_A_FEATURE} for each of its {features} features"
            )
            raise ValueError(f"frames to learn from must be {allowed}, for the score {score}, got {frames}")
        return made

    def features(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Tensor:
        """What the score gives for each frame, a few frames at a time: [frames, features], float64."""
        measured = self.estimator.checked(y, phi, noise_var)
        if not bool((measured.noise_var > 0).all()):
            raise ValueError("noise_var must be positive: a score is in units of the noise")
        parts = in_chunks(measured, self.estimator.chunk(measured) or _BLOCK)
        each = [self.score.features(self.estimator, part, self.shape) for part, _ in parts]
        return torch.cat(each).double().cpu()

    def whiten(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Tensor:
        """Features of mean zero and covariance I where nothing has changed, at any SNR: [frames, features]."""
        return self._stream(y, phi, noise_var)[0]

    def scores(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Tensor:
        """How strange each frame is alone, about 1 at home: [frames]."""
        return self.whiten(y, phi, noise_var).square().mean(1)

    def test(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Verdict:
        """Whether the frames of one stream come from home. y: [frames, m]."""
        white, snr_db = self._stream(y, phi, noise_var)
        statistic, p_value = (float(value) for value in self.judge(white[None], snr_db))
        return Verdict(p_value, p_value <= self.level, statistic, white.square().mean(1))

    def judge(self, white: Tensor, snr_db: Sequence[float]) -> tuple[Tensor, Tensor]:
        """T² and p-value of many streams at once. white: [streams, k, features], snr_db: of the k frames -> [streams] each."""
        statistic = white.sum(1).square().sum(1) / white.shape[1]
        near = Counter(self._nearest(snr) for snr in snr_db)
        null = self._null(tuple(sorted(near.items())))
        larger = len(null) - torch.searchsorted(null, statistic)
        return statistic, (1.0 + larger.double()) / (1.0 + len(null))

    def t_test(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> float:
        """The p-value of the paper's two-sample t-test (Welch's) between these frames and home frames; one feature only."""
        white, snr_db = self._stream(y, phi, noise_var)
        return self.t_tests(white[None], snr_db)[0]

    def t_tests(self, white: Tensor, snr_db: Sequence[float]) -> list[float]:
        """The same for many streams. white: [streams, k, 1] with k > 1."""
        if white.shape[2] != 1 or white.shape[1] < 2:
            raise ValueError(
                f"a t-test is of a score with one feature and of two frames or more, "
                f"got {white.shape[2]} features and {white.shape[1]} frames"
            )
        home = torch.cat([self.references[self._nearest(snr)].white[:, 0] for snr in sorted(set(snr_db))])
        found = stats.ttest_ind(white[..., 0].numpy(), home.numpy()[None], axis=1, equal_var=False)
        return [float(value) for value in found.pvalue]

    def _stream(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> tuple[Tensor, list[float]]:
        """Whitened features [frames, features] and the SNR of each frame."""
        snr = self._snr_db(self.estimator.checked(y, phi, noise_var))
        features = self.features(y, phi, noise_var)
        white = torch.empty_like(features)
        for value in set(snr.tolist()):
            same = snr == value
            white[same] = whitened(features[same], *self._moments(value))
        return white, snr.tolist()

    def _snr_db(self, measured: Measurement) -> Tensor:
        """Of each frame, to a hundredth: [frames]. ValueError where there is no reference near."""
        snr = (-1000.0 * measured.noise_var.double().log10()).round().cpu() / 100.0
        low, high = self.references[0].snr_db, self.references[-1].snr_db
        for value in (float(snr.min()), float(snr.max())):
            if not low - _MARGIN_DB <= value <= high + _MARGIN_DB:
                fitted = f"{low:g} dB" if low == high else f"{low:g} … {high:g} dB"
                raise ValueError(
                    f"the detector has a reference for an SNR of {fitted}, but a frame has {value:.1f} dB; fit it with "
                    "snr_db that reaches there"
                )
        return snr

    def _nearest(self, snr_db: float) -> int:
        return min(range(len(self.references)), key=lambda place: abs(self.references[place].snr_db - snr_db))

    def _moments(self, snr_db: float) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, logarithm of the deviation and correlation at any SNR."""
        above = next((place for place, r in enumerate(self.references) if r.snr_db >= snr_db), len(self.references) - 1)
        one, two = self.references[max(0, above - 1)], self.references[above]
        width = two.snr_db - one.snr_db
        share = 1.0 if width == 0 else min(1.0, max(0.0, (snr_db - one.snr_db) / width))
        return (
            one.mean.lerp(two.mean, share),
            one.log_deviation.lerp(two.log_deviation, share),
            one.correlation.lerp(two.correlation, share),
        )

    def _draw_null(self, near: tuple[tuple[int, int], ...]) -> Tensor:
        """T² of streams of home frames, ascending. near: (reference, how many frames of the stream are nearest to it).

        The mean of a reference is known to the inverse of its frames only, which lifts T² of all streams to come.
        """
        generator = torch.Generator().manual_seed(0)
        total = torch.zeros(_NULL_STREAMS, self.references[0].white.shape[1], dtype=torch.float64)
        length, lift = sum(count for _, count in near), 1.0
        for place, count in near:
            white = self.references[place].white
            for _ in range(count):
                total += white[torch.randint(len(white), (_NULL_STREAMS,), generator=generator)]
            lift += count**2 / (length * len(white))
        null: Tensor = (lift * total.square().sum(1) / length).sort().values
        return null


def whitened(features: Tensor, mean: Tensor, log_deviation: Tensor, correlation: Tensor) -> Tensor:
    """L⁻¹(features - mean)/deviation with LLᵀ the correlation: [frames, features]."""
    scaled = (features - mean) / log_deviation.exp()
    white: Tensor = torch.linalg.solve_triangular(cholesky(correlation), scaled.mT, upper=False)
    return white.mT
