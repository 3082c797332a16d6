"""Out-of-distribution detection: VLISTA trained on three digits, tested on these and on the other seven; BCS beside it.

The paper's procedure: 100 reconstructions of an image, each with dictionaries of its own; the c.d.f. of the variances of its
pixels, summed up by its mean; a two-sample t-test between images of the two kinds. The mean of a c.d.f. is read as that of the
distribution it describes, the mean variance; its average height over a common range is an affine function of that and has the
same p-value. For BCS the paper takes the c.d.f. of the reconstruction error. We add what a receiver needs: how well one image
is told from another, AUROC, for several scores. What the paper leaves open and we chose: which digits; m = 100; the noise
levels; as many images of each kind as are given below; Welch's t-test, which does not suppose equal variances.
"""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor

from vlista_core.data.image_problem import ImageProblem
from vlista_core.estimate import Estimator
from vlista_core.experiments.curves import BAYESIAN
from vlista_core.experiments.experiment import identity, rows_by
from vlista_core.experiments.images import CONTROL, SIZES, ImageExperiment, estimate_with_variance
from vlista_core.metrics import auroc, finite_samples
from vlista_core.plotting import new_figure
from vlista_core.problems import Batch
from vlista_core.study import Cell, Context, Figure, Row, Table
from vlista_core.study.measuring import finite
from vlista_core.study.tables import number, signed

DIGITS = {0: (0, 3, 7), 1: (1, 4, 9), 2: (2, 5, 8), 3: (0, 6, 9), 4: (3, 4, 8), 5: (1, 2, 6)}
"""Digits that the network sees, by seed. Training and procedure were settled with the first; the others repeat the test."""
NOISE: dict[str, float | None] = {"noiseless": None, "30 dB": 30.0, "20 dB": 20.0, "10 dB": 10.0}
"""Levels of the noise -> SNR by the energy of the three digits."""
RESAMPLES = 2000
"""Of the bootstrap."""
SCORES = {
    "variance": "mean variance of the pixels",
    "log variance": "mean log variance of the pixels",
    "relative variance": "mean variance over mean square of the estimate",
    "residual": "‖y − Φŝ‖²/‖y‖²",
    "error": "mean squared error, which needs the truth",
}
"""Each higher for what is further from home, it is hoped."""
PAPER = {"vlista": ("variance",), "vlista-constant": ("variance",), "bcs": ("error", "variance")}
"""The score whose c.d.f. the paper averages; of BCS it may mean the error bar that BCS itself gives, its variance."""
SIGNIFICANT = 0.05
_MARKERS = ("o", "s", "^", "v", "D", "P")
"""Of the curves, by seed."""
_LEAST_VARIANCE = 1e-12
_LEAST_P = 1e-12
"""Where the figure of the p-values ends."""

Found = dict[str, dict[str, tuple[Tensor, Tensor]]]
"""Score -> noise level -> its values for images seen and unseen, [images] each."""


class OutOfDistribution(ImageExperiment):
    """Can the variance of its reconstructions tell that an image is of a kind the network never saw?"""

    name: ClassVar[str] = "ood"
    summary: ClassVar[str] = (
        "VLISTA trained on three digits against the other seven: p-values of the paper's t-test and AUROC, by noise level."
    )
    figure: ClassVar[str] = "auroc_noiseless"

    at_half_size: ClassVar[dict[str, Any]] = {"measurements": 25, "draws": 30}

    models: tuple[str, ...] = ("vlista", "vlista-constant", "bcs")
    measurements: int = 100
    recipes: tuple[str, ...] = ("paper",)
    images: int = 100
    """Of each kind, and at each noise level."""
    draws: int = 100

    def cells(self) -> list[Cell]:
        return self.model_cells(measurements=[self.measurements], seed=DIGITS)

    def run(self, cell: Cell, context: Context) -> Row:
        model, _, seed = identity(cell)
        estimator, inside, details = self.fitted("mnist", self.name, cell, context, classes=DIGITS[seed])
        outside = replace(inside, classes=others(seed))
        found: Found = {score: {} for score in SCORES}
        diverged = 0
        for done, (noise, snr_db) in enumerate(NOISE.items()):
            context.report(done / len(NOISE), noise)
            pair = draw_pair(inside, outside, self.images, seed, snr_db)
            home, away = (score_images(estimator, batch, self.draws) for batch in pair)
            for score in SCORES:
                found[score][noise] = home[score], away[score]
            diverged += sum(int((~finite_samples(torch.stack([*scores.values()], 1))).sum()) for scores in (home, away))
        figures = summarise(found, PAPER[model][0], seed)
        return {**figures, **details, "test_samples": 2 * self.images, "diverged": diverged}

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        found, each = rows_by(frame, "model", "seed"), f"{self.images} images of each kind{SIZES[self.size]}"

        def texts(model: str, seed: int, score: str, kind: str) -> list[str]:
            cell = found.get((model, seed), {})
            return [_text(cell.get(f"scores.{score}.{kind}.{noise}"), cell.get("diverged")) for noise in NOISE]

        def line(seed: int, model: str, score: str) -> list[str]:
            return [_seen(seed), model, SCORES[score], *texts(model, seed, score, "p_values")]

        tests = [line(seed, model, score) for seed in DIGITS for model in self.models for score in PAPER[model]]
        heading = ("digits seen", "model", "score", *NOISE)
        tables = [Table.of(f"p-value of the paper's two-sample t-test, {each}", heading, tests)]
        for seed in DIGITS:
            pairs = itertools.product(self.models, SCORES)
            lines = [[f"{model}, {SCORES[score]}", *texts(model, seed, score, "auroc")] for model, score in pairs]
            title = f"AUROC of a single image, with its 95 % interval, digits {_seen(seed)} seen, {each}"
            tables.append(Table.of(title, ("model and score", *NOISE), lines))
        return [*tables, self._over_splits(found)]

    def _over_splits(self, found: dict[tuple[Any, ...], dict[Any, Any]]) -> Table:
        """The mean AUROC of each model over the splits, and what VLISTA gains over its control, split by split."""

        def values(model: str, score: str, noise: str) -> dict[int, float]:
            known = {seed: found.get((model, seed), {}).get(f"scores.{score}.auroc.{noise}") for seed in DIGITS}
            return {seed: ends[0] for seed, ends in known.items() if isinstance(ends, list)}

        def gain(score: str, noise: str) -> str:
            ours, control = (values(model, score, noise) for model in ("vlista", CONTROL))
            gains = np.array([ours[seed] - control[seed] for seed in ours if seed in control])
            if len(gains) < 2:
                return "–"
            margin = float(stats.t.ppf(0.975, len(gains) - 1) * gains.std(ddof=1) / len(gains) ** 0.5)
            return f"{signed(float(gains.mean()), 3)} ± {margin:.3f}"

        lines = []
        for model, score in itertools.product(self.models, SCORES):
            each = [values(model, score, noise) for noise in NOISE]
            lines.append(
                [model, SCORES[score], *(f"{np.mean([*v.values()]):.3f} ({len(v)})" if v else "–" for v in each)]
            )
        lines += [
            [f"vlista less {CONTROL}", SCORES[score], *(gain(score, noise) for noise in NOISE)] for score in SCORES
        ]
        title = (
            f"AUROC of a single image{SIZES[self.size]}: mean over the splits (how many), and the mean gain over one constant "
            "deviation with its 95 % interval over the splits"
        )
        return Table.of(title, ("model", "score", *NOISE), lines)

    def figures(self, frame: pd.DataFrame, folder: Path) -> list[Figure]:
        if frame.empty:
            return []
        path, found, places = folder / "ood.png", rows_by(frame, "model", "seed"), np.arange(len(NOISE))
        with new_figure(path, (11.2, 5.0)) as figure:
            left, right = figure.subplots(1, 2)
            for model, seed in (key for key in itertools.product(self.models, DIGITS) if key in found):
                row = found[model, seed]
                style: dict[str, Any] = {
                    "color": BAYESIAN[model], "marker": _MARKERS[seed], "lw": 1.2,
                    "label": f"{model}, {_seen(seed)}",
                }  # fmt: skip
                tests = np.array([row[f"p_values.{noise}"] for noise in NOISE], dtype=float)
                left.plot(places, np.maximum(tests, _LEAST_P), **style)
                known = [ends if isinstance(ends := row[f"auroc.{noise}"], list) else [math.nan] * 3 for noise in NOISE]
                middle, low, high = np.array(known, dtype=float).T
                beside = places + 0.03 * ([*PAPER].index(model) * len(DIGITS) + seed)
                right.errorbar(beside, middle, yerr=(middle - low, high - middle), capsize=3, **style)
            left.axhline(SIGNIFICANT, color="#00805f", lw=1.2)
            left.set(yscale="log", ylabel="p-value", title="t-test of all images")
            right.axhline(0.5, color="#777777", lw=0.8)
            right.set(ylim=(0.2, 1.0), ylabel="AUROC", title="AUROC of a single image")
            for axes in (left, right):
                axes.set_xticks(places, list(NOISE))
                axes.set_xlabel("SNR of the measurements")
                axes.grid(alpha=0.25)
            handles, labels = left.get_legend_handles_labels()
            title = "model, digits seen"
            figure.legend(handles, labels, loc="outside lower center", ncols=len(DIGITS), frameon=False, title=title)
        caption = (
            f"A curve for each three digits seen. Left: the paper's test; below the green line ({SIGNIFICANT:g}) the two kinds "
            "of images are told apart. "
            "Right: the probability that an image of an unseen digit has a higher score than one of a digit seen, with "
            "its 95 % bootstrap interval; ½ is chance. VLISTA by the variance of its reconstructions, BCS by its error, "
            "as in the paper."
        )
        return [Figure("Out-of-distribution detection by noise level", caption, path)]


def others(seed: int) -> tuple[int, ...]:
    """The digits that are not seen."""
    return tuple(digit for digit in range(10) if digit not in DIGITS[seed])


def draw_pair(
    inside: ImageProblem, outside: ImageProblem, count: int, seed: int, snr_db: float | None
) -> tuple[Batch, Batch]:
    """Test images of the two kinds, each with its own Φ; the noise and the mean that is subtracted are those of `inside`."""
    home = inside.sample(count, seed=seed, split="test", snr_db=snr_db)
    same = None if snr_db is None else snr_db + 10.0 * math.log10(outside.energy / inside.energy)
    away = outside.sample(count, seed=seed, split="test", start=count, snr_db=same)
    shift = (outside.offset - inside.offset).expand(count, -1)
    return home, replace(away, signal=away.signal + shift, y=away.y + away.phi.apply(shift))


def score_images(estimator: Estimator, batch: Batch, draws: int) -> dict[str, Tensor]:
    """Every score of every image: [batch] each."""
    signal, _, doubt = estimate_with_variance(estimator, batch, draws)
    variance = doubt.double()
    residual = (batch.y - batch.phi.apply(signal)).double()
    return {
        "variance": variance.mean(1),
        "log variance": variance.clamp_min(_LEAST_VARIANCE).log().mean(1),
        "relative variance": variance.mean(1) / signal.double().square().mean(1).clamp_min(_LEAST_VARIANCE),
        "residual": residual.square().sum(1) / batch.y.double().square().sum(1).clamp_min(_LEAST_VARIANCE),
        "error": (signal - batch.signal).double().square().mean(1),
    }


def p_value(scores_in: Tensor, scores_out: Tensor) -> float:
    """Of Welch's two-sample t-test that both have one mean; 1 where there is nothing to tell them by."""
    if bool((torch.cat([scores_in, scores_out]) == scores_in[0]).all()):
        return 1.0
    return float(stats.ttest_ind(scores_in.numpy(), scores_out.numpy(), equal_var=False).pvalue)


def auroc_interval(scores_in: Tensor, scores_out: Tensor, seed: int) -> tuple[float, float, float]:
    """AUROC with its 95 % percentile bootstrap interval, images of each kind drawn anew among themselves."""
    random = np.random.default_rng(seed)
    higher = np.sign(scores_out.numpy()[None, :] - scores_in.numpy()[:, None]) / 2 + 0.5
    rows, columns = (random.multinomial(count, np.full(count, 1 / count), RESAMPLES) for count in higher.shape)
    values = ((rows @ higher) * columns).sum(1) / higher.size
    low, high = np.quantile(values, (0.025, 0.975))
    return auroc(scores_in, scores_out), float(low), float(high)


def summarise(found: Found, paper: str, seed: int) -> Row:
    """What a row keeps. paper: the paper's score, whose figures stand apart as well; None where a score is not finite."""

    def interval(pair: tuple[Tensor, Tensor]) -> list[float] | None:
        if not all(bool(torch.isfinite(values).all()) for values in pair):
            return None
        ends: list[float] = np.round(auroc_interval(*pair, seed), 4).tolist()
        return ends

    scores: dict[str, Any] = {
        score: {
            "p_values": {noise: finite(float(f"{p_value(*pair):.4g}")) for noise, pair in levels.items()},
            "auroc": {noise: interval(pair) for noise, pair in levels.items()},
        }
        for score, levels in found.items()
    }
    first = scores[paper]["auroc"]["noiseless"]
    return {"auroc_noiseless": first and first[0], **scores[paper], "scores": scores, "score": paper}


def _text(value: list[float] | float | None, diverged: float | None) -> str:
    """A p-value, or an AUROC with its interval."""
    if isinstance(value, list):
        return "{:.2f} ({:.2f} … {:.2f})".format(*value)
    return number(value, ".2g", diverged=diverged)


def _seen(seed: int) -> str:
    return ", ".join(str(digit) for digit in DIGITS[seed])
