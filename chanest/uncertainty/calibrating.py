"""Fitting a Calibration on validation draws: half of them for the variance, the other half for the intervals.

The variance is the most likely one for e_i ~ CN(0, v_i): a regression of |e|² with a logarithmic link, convex in a, b and c.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from pydantic import JsonValue
from torch import Tensor

from chanest.fit import Report, silent
from chanest.uncertainty.calibration import Calibration, Feature, FeatureName, Intervals, hats, observed, snr_db
from vlista_core.linalg import solve_hermitian
from vlista_core.problems import check_count
from vlista_core.study.store import environment

if TYPE_CHECKING:
    from chanest.bases.estimator import ChannelEstimator
    from chanest.problem import ChannelProblem

SNRS_DB = (-10.0, -5.0, 0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0)
KNOTS_DB = (-10.0, 0.0, 10.0, 20.0, 30.0)
LEVELS = (*(round(0.05 * step, 2) for step in range(1, 20)), 0.99)
CHANNELS, LEAST_CHANNELS = 256, 32
SEED = 1000
"""Of the validation draws: none that training or tuning looks at, whose seeds are small."""
_FEATURES: tuple[FeatureName, ...] = ("energy", "residual")
_RANGE = (0.01, 0.99)
"""Quantiles of a feature beyond which a table is constant."""
_FAVOUR = 0.005
"""Nats by which a simpler variance may be behind and still be taken."""
_RIDGE = 1e-3
_STEPS = 40
_CHUNK = 64
_PROBED = 4


@dataclass(frozen=True)
class Draws:
    """What an estimator does on draws of known channels. errors: |h - ĥ|², [N, n]; raw: its own variance; the rest: [N]."""

    errors: Tensor
    raw: Tensor | None
    snr_db: Tensor
    features: dict[FeatureName, Tensor]

    def half(self, number: int) -> Draws:
        """Every other channel."""
        some = slice(number, None, 2)
        raw = None if self.raw is None else self.raw[some]
        return Draws(
            self.errors[some], raw, self.snr_db[some], {key: value[some] for key, value in self.features.items()}
        )


def affordable(estimator: ChannelEstimator, problem: ChannelProblem, seconds: float) -> int:
    """How many channels at each SNR `calibrate` can take in about that time, at most `CHANNELS`; 0 where too few."""
    started = time.perf_counter()
    draw(estimator, problem, (10.0,), _PROBED, SEED)
    each = (time.perf_counter() - started) / _PROBED * len(SNRS_DB)
    count = min(CHANNELS, int(seconds / each))
    return count if count >= LEAST_CHANNELS else 0


def calibrate(
    estimator: ChannelEstimator,
    problem: ChannelProblem,
    *,
    weights: str,
    channels: int = CHANNELS,
    seed: int = SEED,
    report: Report = silent,
) -> Calibration:
    """The calibration of an estimator for a problem. weights: the hash it is tied to; channels: at each of nine SNRs.

    A method with a variance of its own keeps it, scaled, unless features or a table make the errors likelier.
    """
    check_count("channels", channels, least=LEAST_CHANNELS)
    draws = draw(estimator, problem, SNRS_DB, channels, seed, report)
    fit, rest = draws.half(0), draws.half(1)
    fitted = {}
    if draws.raw is not None and bool((draws.raw > 0).all()):
        fitted["own variance"] = _fitted(fit, (), own=True)
        fitted["own variance and features"] = _fitted(fit, _FEATURES, own=True)
    fitted["table"] = _fitted(fit, _FEATURES, own=False)
    surprises = {each: model.surprise(fit) for each, model in fitted.items()}
    kind = next(each for each, surprise in surprises.items() if surprise <= min(surprises.values()) + _FAVOUR)
    best = fitted[kind]
    facts: dict[str, JsonValue] = {
        "split": "validation",
        "seed": seed,
        "channels": channels,
        "snr_db": list(SNRS_DB),
        "variance": kind,
        "nll": {each: round(model.surprise(rest), 4) for each, model in fitted.items()},
        "channel_hash": problem.scenario.channel_hash(),
        "versions": environment()["versions"],
    }
    return Calibration(
        format=1,
        estimator=estimator.name,
        scenario=problem.scenario.name,
        frontend=problem.scenario.frontend.model_dump(mode="json"),
        weights=weights,
        snr_db=KNOTS_DB,
        log_scale=_rounded(best.log_scale),
        features={
            key: Feature(slope=_rounded(slope), low=round(float(low), 4), high=round(float(high), 4))
            for key, slope, (low, high) in zip(_FEATURES, best.slopes, best.ranges, strict=False)
        },
        profile=None if best.profile is None else _rounded(best.profile),
        intervals=conformal_intervals(rest, best.variance(rest)),
        provenance=facts,
    )


def draw(
    estimator: ChannelEstimator,
    problem: ChannelProblem,
    snrs: tuple[float, ...],
    channels: int,
    seed: int,
    report: Report = silent,
) -> Draws:
    """An estimator on validation draws, as many at each SNR, no channel twice."""
    parts: list[Draws] = []
    for number, snr in enumerate(snrs):
        for first in range(0, channels, _CHUNK):
            size = min(_CHUNK, channels - first)
            start = number * channels + first
            batch = problem.sample(size, seed=seed, split="validation", start=start, snr_db=snr)
            found = estimator.estimate(batch.y, batch.phi, batch.noise_var)
            measured = estimator.checked(batch.y, batch.phi, batch.noise_var)
            raw = found.own_variance
            parts.append(
                Draws(
                    (found.signal - batch.signal).abs().square().double(),
                    None if raw is None else raw.double(),
                    snr_db(batch.noise_var).double(),
                    {key: value.double() for key, value in observed(measured, found, KNOTS_DB).items()},
                )
            )
            report((start + size) / (len(snrs) * channels), "calibration")
    raws = [part.raw for part in parts if part.raw is not None]
    return Draws(
        torch.cat([part.errors for part in parts]),
        torch.cat(raws) if raws else None,
        torch.cat([part.snr_db for part in parts]),
        {key: torch.cat([part.features[key] for part in parts]) for key in _FEATURES},
    )


class _Model(NamedTuple):
    """log_scale: a at the knots; slopes: b and c; ranges: [features, 2]; profile: [n], None to scale raw."""

    log_scale: Tensor
    slopes: list[Tensor]
    ranges: Tensor
    profile: Tensor | None

    def variance(self, draws: Draws) -> Tensor:
        """[N, n]."""
        weights = hats(KNOTS_DB, draws.snr_db)
        log_scale = weights @ self.log_scale
        for key, slope, (low, high) in zip(_FEATURES, self.slopes, self.ranges, strict=False):
            log_scale = log_scale + (weights @ slope) * draws.features[key].clamp(low, high)
        shape = draws.raw if self.profile is None else self.profile
        return log_scale.exp()[:, None] * cast(Tensor, shape)

    def surprise(self, draws: Draws) -> float:
        """Mean of -log CN(h_i; ĥ_i, v_i)."""
        return negative_log_likelihood(draws.errors, self.variance(draws))


def negative_log_likelihood(squared_errors: Tensor, variance: Tensor) -> float:
    """Mean of -log CN(e; 0, v) = log πv + |e|²/v, in nats an entry. Both of one shape."""
    return math.log(math.pi) + float((variance.log() + squared_errors / variance).mean(dtype=torch.float64))


def _fitted(draws: Draws, names: tuple[FeatureName, ...], *, own: bool) -> _Model:
    """The likeliest a, b and c; features are cut to the range of most draws. own: of the method's own variance."""
    weights, limits = hats(KNOTS_DB, draws.snr_db), torch.tensor(_RANGE, dtype=torch.float64)
    ranges = torch.zeros(len(names), 2, dtype=torch.float64)
    columns = [weights]
    for number, name in enumerate(names):
        ranges[number] = draws.features[name].quantile(limits)
        columns.append(weights * draws.features[name].clamp(*ranges[number].tolist())[:, None])
    shape = cast(Tensor, draws.raw) if own else torch.ones_like(draws.errors)
    found = _log_mean(torch.cat(columns, dim=1), (draws.errors / shape).mean(1), free=len(KNOTS_DB))
    log_scale, *slopes = found.reshape(-1, len(KNOTS_DB)).unbind()
    model = _Model(log_scale, slopes, ranges, None if own else shape[0])
    return model if own else model._replace(profile=(draws.errors / model.variance(draws)).mean(0))


def _log_mean(design: Tensor, values: Tensor, *, free: int) -> Tensor:
    """θ that minimises the mean of Xθ + values·exp(-Xθ), so that exp(Xθ) is their mean given X: Newton's method.

    design: X, [N, k]; values: [N], positive; free: the first columns, which no ridge pulls to zero -> [k].
    """
    ridge = torch.full((design.shape[1],), _RIDGE, dtype=design.dtype)
    ridge[:free] = 1e-9
    theta = torch.zeros_like(ridge)
    theta[:free] = values.mean().log()

    def cost(at: Tensor) -> float:
        exponent = design @ at
        return float((exponent + values * (-exponent).exp()).mean() + 0.5 * (ridge * at.square()).sum())

    for _ in range(_STEPS):
        weight = values * (-(design @ theta)).exp()
        gradient = design.mT @ (1 - weight) / len(values) + ridge * theta
        hessian = (design.mT * weight) @ design / len(values) + ridge.diag()
        step = solve_hermitian(hessian, gradient[:, None])[:, 0]
        length, before = 1.0, cost(theta)
        while cost(theta - length * step) > before and length > 1e-6:
            length /= 2
        theta = theta - length * step
        if float(step.abs().max()) < 1e-8:
            break
    return theta


def conformal_intervals(draws: Draws, variance: Tensor) -> Intervals:
    """The quantiles of |e|²/v with the correction for K channels: the level counts (K + 1)/K times.

    Entries of a channel are not exchangeable with those of another, channels are: an entry of a fresh channel lies within
    the level·(K + 1)/K quantile of all entries of K channels with probability `level` or more (Lee, Barber & Willett 2023).
    """
    scores = draws.errors / variance
    groups = [scores[(draws.snr_db - snr).abs() < 1.0] for snr in SNRS_DB]
    fewest = min(len(group) for group in groups)
    levels = tuple(level for level in LEVELS if level * (fewest + 1) <= fewest)
    table = []
    for group in groups:
        ordered = group.flatten().sort().values
        share = (len(group) + 1) / len(group)
        ranks = [min(len(ordered), math.ceil(level * share * len(ordered) - 1e-9)) for level in levels]
        table.append(tuple(float(f"{float(ordered[rank - 1]):.5g}") for rank in ranks))
    return Intervals(snr_db=SNRS_DB, levels=levels, squared_radius=tuple(table), channels=fewest)


def _rounded(values: Tensor) -> tuple[float, ...]:
    return tuple(round(float(value), 4) for value in values)
