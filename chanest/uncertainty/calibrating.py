"""Fitting a Calibration on validation draws: half of them for the variance, the other half for the intervals.

The variance is the most likely one for e_i ~ CN(0, v_i): a regression of |e|² with a logarithmic link, convex in a, b and c.
"""

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from pydantic import JsonValue
from torch import Tensor

from chanest.fit import Report, silent
from chanest.uncertainty.calibration import (
    Calibration,
    Feature,
    FeatureName,
    Intervals,
    VarianceModel,
    hats,
    observed,
    snr_db,
)
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
_ENTRIES = 2**13
"""Of a channel, drawn at random, whose errors are kept where there are more and the method has a variance of its own."""
_RIDGE = 1e-3
_STEPS = 40
_CHUNK = 64
_PROBED = 4


@dataclass(frozen=True)
class Draws:
    """What an estimator does on draws of known channels. errors: |h - ĥ|², [N, n], or of `_ENTRIES` entries; raw: its own
    variance; the rest: [N]."""

    errors: Tensor
    raw: Tensor | None
    snr_db: Tensor
    features: dict[FeatureName, Tensor]

    def half(self, number: int) -> "Draws":
        """Every other channel."""
        some = slice(number, None, 2)
        raw = None if self.raw is None else self.raw[some]
        return Draws(
            self.errors[some], raw, self.snr_db[some], {key: value[some] for key, value in self.features.items()}
        )


def affordable(estimator: "ChannelEstimator", problem: "ChannelProblem", seconds: float) -> int:
    """How many channels at each SNR `calibrate` can take in about that time, at most `CHANNELS`; 0 where too few."""
    started = time.perf_counter()
    draw(estimator, problem, (10.0,), _PROBED, SEED)
    each = (time.perf_counter() - started) / _PROBED * len(SNRS_DB)
    count = min(CHANNELS, int(seconds / each))
    return count if count >= LEAST_CHANNELS else 0


def calibrate(
    estimator: "ChannelEstimator",
    problem: "ChannelProblem",
    *,
    weights: str,
    channels: int = CHANNELS,
    seed: int = SEED,
    report: Report = silent,
) -> Calibration:
    """The calibration of an estimator for a problem. weights: the hash it is tied to; channels: at each of nine SNRs.

    A method with a variance of its own keeps it, scaled, unless features or a table make the errors likelier. A table has a
    number for every entry: where a channel has many and there is a variance, there is none.
    """
    check_count("channels", channels, least=LEAST_CHANNELS)
    draws = draw(estimator, problem, SNRS_DB, channels, seed, report)
    fit, rest = draws.half(0), draws.half(1)
    fitted = {}
    whole = draws.errors.shape[1] == estimator.signal_length
    if draws.raw is not None and (not whole or bool((draws.raw > 0).all())):
        fitted["own variance"] = _fitted(fit, (), own=True)
        fitted["own variance and features"] = _fitted(fit, _FEATURES, own=True)
    if whole:
        fitted["table"] = _fitted(fit, _FEATURES, own=False)
    surprises = {each: _surprise(model, fit) for each, model in fitted.items()}
    kind = next(each for each, surprise in surprises.items() if surprise <= min(surprises.values()) + _FAVOUR)
    best = fitted[kind]
    facts: dict[str, JsonValue] = {
        "split": "validation",
        "seed": seed,
        "channels": channels,
        "snr_db": list(SNRS_DB),
        "variance": kind,
        "nll": {each: round(_surprise(model, rest), 4) for each, model in fitted.items()},
        "channel_hash": problem.scenario.channel_hash(),
        "versions": environment()["versions"],
    }
    return Calibration(
        **dict(best),
        format=1,
        estimator=estimator.name,
        scenario=problem.scenario.name,
        frontend=problem.scenario.frontend.model_dump(mode="json"),
        weights=weights,
        intervals=conformal_intervals(rest, _variance(best, rest)),
        provenance=facts,
    )


def draw(
    estimator: "ChannelEstimator",
    problem: "ChannelProblem",
    snrs: tuple[float, ...],
    channels: int,
    seed: int,
    report: Report = silent,
) -> Draws:
    """An estimator on validation draws, as many at each SNR, no channel twice."""
    parts, raws = [], []
    for number, snr in enumerate(snrs):
        for first in range(0, channels, _CHUNK):
            size = min(_CHUNK, channels - first)
            start = number * channels + first
            batch = problem.sample(size, seed=seed, split="validation", start=start, snr_db=snr)
            found = estimator.estimate(batch.y, batch.phi, batch.noise_var)
            measured = estimator.checked(batch.y, batch.phi, batch.noise_var)
            seen = observed(measured, found, KNOTS_DB)
            squared = (found.signal - batch.signal).abs().square()
            raw = found.own_variance
            if raw is not None and raw.shape[1] > _ENTRIES:
                some = _some_entries(raw.shape[1], seed)
                squared, raw = squared[:, some], raw[:, some].clamp_min(torch.finfo(raw.dtype).tiny)
            parts.append((squared, snr_db(batch.noise_var), *(seen[key] for key in _FEATURES)))
            raws.append(raw)
            report((start + size) / (len(snrs) * channels), "calibration")
    errors, levels, *features = (torch.cat(column).double() for column in zip(*parts, strict=True))
    known = [raw for raw in raws if raw is not None]
    raw = torch.cat(known).double() if known else None
    return Draws(errors, raw, levels, dict(zip(_FEATURES, features, strict=True)))


def _some_entries(length: int, seed: int) -> Tensor:
    """`_ENTRIES` of the places 0 … length - 1, the same for all draws of a seed."""
    return torch.randperm(length, generator=torch.Generator().manual_seed(seed))[:_ENTRIES].sort().values


def _variance(model: VarianceModel, draws: Draws) -> Tensor:
    """v: [N, n]."""
    scale = model.scale_at(draws.snr_db, draws.features)[:, None]
    return scale * (cast(Tensor, draws.raw) if model.profile is None else scale.new_tensor(model.profile))


def _surprise(model: VarianceModel, draws: Draws) -> float:
    """Mean of -log CN(h_i; ĥ_i, v_i)."""
    return negative_log_likelihood(draws.errors, _variance(model, draws))


def negative_log_likelihood(squared_errors: Tensor, variance: Tensor) -> float:
    """Mean of -log CN(e; 0, v) = log πv + |e|²/v, in nats an entry. Both of one shape."""
    return math.log(math.pi) + float((variance.log() + squared_errors / variance).mean(dtype=torch.float64))


def _fitted(draws: Draws, names: tuple[FeatureName, ...], *, own: bool) -> VarianceModel:
    """The likeliest a, b and c; features are cut to the range of most draws. own: of the method's own variance."""
    weights, limits = hats(KNOTS_DB, draws.snr_db), torch.tensor(_RANGE, dtype=torch.float64)
    ranges = [_rounded(draws.features[name].quantile(limits)) for name in names]
    seen = [draws.features[name].clamp(*limits)[:, None] for name, limits in zip(names, ranges, strict=True)]
    design = torch.cat([weights, *(weights * feature for feature in seen)], dim=1)
    errors = draws.errors / cast(Tensor, draws.raw) if own else draws.errors
    found = _log_mean(design, errors.mean(1), free=len(KNOTS_DB))
    log_scale, *slopes = (_rounded(each) for each in found.reshape(-1, len(KNOTS_DB)))
    features = {
        name: Feature(slope=slope, low=low, high=high)
        for name, slope, (low, high) in zip(names, slopes, ranges, strict=True)
    }
    model = VarianceModel(snr_db=KNOTS_DB, log_scale=log_scale, features=features, profile=None)
    if own:
        return model
    profile = errors / model.scale_at(draws.snr_db, draws.features)[:, None]
    return model.model_copy(update={"profile": _rounded(profile.mean(0))})


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
