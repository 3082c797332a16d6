"""Variances that are as large as the errors, and intervals that cover what they say: fitted once, kept in a small file.

v_i = shape_i·exp(a + b·log energy + c·log residual), where the shape is the method's own variance or, where it has none or a
poor one, a profile that all channels share; energy is that of ĥ and residual |y - Φĥ|²/σ², both an entry. b and c may be 0.
a, b and c are piecewise linear in the SNR in dB and constant beyond the last knots.
"""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Literal, Self, cast

import torch
from pydantic import BaseModel, ConfigDict, JsonValue, model_validator
from torch import Tensor

from chanest.uncertainty.estimate import independent
from vlista_core.estimate import Estimate, Measurement
from vlista_core.files import of_json, to_json, write_text
from vlista_core.linops import LinearMap
from vlista_core.tensorfile import Json

LEAST_ENERGY, LEAST_RESIDUAL = 1e-3, 1e-2
"""Added before the logarithm: less than this tells nothing."""


FeatureName = Literal["energy", "residual"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Feature(_Part):
    """What a table goes by besides the SNR: the slope of log v at each knot, and the range in which it was seen."""

    slope: tuple[float, ...]
    low: float
    high: float


class Intervals(_Part):
    """Conformal intervals: at each SNR and level the q with |h_i - ĥ_i|² ≤ q·v_i, from draws that v was not fitted on."""

    snr_db: tuple[float, ...]
    levels: tuple[float, ...]
    squared_radius: tuple[tuple[float, ...], ...]
    """[SNRs][levels]."""
    channels: int
    """At each SNR."""


class VarianceModel(_Part):
    """How the variance of an estimator follows from what it sees."""

    snr_db: tuple[float, ...]
    """Knots."""
    log_scale: tuple[float, ...]
    """a at the knots."""
    features: dict[FeatureName, Feature]
    profile: tuple[float, ...] | None
    """[n]; None where the shape is the method's own variance."""

    def scale_at(self, snr: Tensor, seen: Mapping[FeatureName, Tensor]) -> Tensor:
        """exp(a + b·log energy + c·log residual). snr in dB and features `seen`: [batch] each -> [batch]."""
        weights = hats(self.snr_db, snr)
        log_scale = weights @ weights.new_tensor(self.log_scale)
        for key, feature in self.features.items():
            log_scale = log_scale + weights @ weights.new_tensor(feature.slope) * seen[key].clamp(
                feature.low, feature.high
            )
        return log_scale.exp()


class Calibration(VarianceModel):
    """The variances and intervals of an estimator; for the weights, channels and front end they were fitted on."""

    format: Literal[1]
    estimator: str
    scenario: str
    frontend: dict[str, JsonValue]
    weights: str
    """Hash of the weights file; of the configuration where there is none."""
    intervals: Intervals
    provenance: dict[str, JsonValue]

    @model_validator(mode="after")
    def _check(self) -> Self:
        knots = len(self.snr_db)
        _check_ascending("snr_db", self.snr_db)
        for values in (self.log_scale, *(feature.slope for feature in self.features.values())):
            if len(values) != knots:
                raise ValueError(
                    f"log_scale and slopes must have one number for each of {knots} knots, got {len(values)}"
                )
        if self.profile is not None and not (self.profile and min(self.profile) > 0):
            raise ValueError("profile must hold positive numbers")
        table = self.intervals.squared_radius
        _check_ascending("intervals.snr_db", self.intervals.snr_db)
        _check_ascending("intervals.levels", self.intervals.levels)
        if len(table) != len(self.intervals.snr_db) or any(len(row) != len(self.intervals.levels) for row in table):
            raise ValueError("intervals.squared_radius must have a row for each SNR and a number for each level")
        if min(min(row) for row in table) < 0:
            raise ValueError("intervals.squared_radius must not be negative")
        return self

    @property
    def uses_raw(self) -> bool:
        """Whether it scales the variance that the method has itself."""
        return self.profile is None

    def scale(self, measured: Measurement, found: Estimate) -> Tensor:
        """`scale_at` for a measurement and its estimate: [batch]."""
        seen = observed(measured, found, self.snr_db) if self.features else {}
        return self.scale_at(snr_db(measured.noise_var), seen)

    def variance(
        self, measured: Measurement, found: Estimate, raw: Tensor | None, probes: LinearMap | None = None
    ) -> Tensor | None:
        """E|h - ĥ|² of each entry, or of Pĥ. raw: the method's own, of ĥ or Pĥ -> [batch, n or p]."""
        scale = self.scale(measured, found)[:, None]
        if self.profile is None:
            return None if raw is None else scale * raw
        return independent(scale * scale.new_tensor(self.profile), probes)

    def radius(self, level: float, noise_var: Tensor) -> Tensor:
        """r with |h_i - ĥ_i| ≤ r·√v_i for an entry of a fresh channel with probability `level` or more: [batch].

        The guarantee is over channels of the scenario, beams, noise and entries, at the SNRs of the calibration draws; between
        them the larger radius of the neighbours holds, and between two levels that of the higher.
        """
        levels = self.intervals.levels
        if not 0.0 < level <= levels[-1]:
            raise ValueError(
                f"level must lie between 0 and {levels[-1]:g}, the highest that {self.intervals.channels} calibration "
                f"channels can promise, got {level}"
            )
        column = next(place for place, known in enumerate(levels) if known >= level - 1e-9)
        squared = noise_var.new_tensor([row[column] for row in self.intervals.squared_radius])
        knots = noise_var.new_tensor(self.intervals.snr_db)
        snr = snr_db(noise_var).clamp(knots[0], knots[-1])
        above = torch.searchsorted(knots, snr - 1e-3).clamp_max(len(knots) - 1)
        below = (torch.searchsorted(knots, snr + 1e-3, right=True) - 1).clamp_min(0)
        return torch.maximum(squared[above], squared[below]).sqrt()

    def write(self, path: Path) -> None:
        """Into a file, whole or not at all."""
        write_text(path, to_json(cast(Json, self.model_dump(mode="json"))) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """From a file of `write`, or a ValueError of one sentence."""
        try:
            return of_json(path.read_bytes(), cls)
        except (ValueError, OSError) as fault:
            said = f"{path} is no calibration of this version of chanest ({fault})"
            raise ValueError(f"{said}; fit it again with: chanest calibrate SCENARIO -e NAME") from None


def snr_db(noise_var: Tensor) -> Tensor:
    """-10 log10 σ², finite for σ² = 0 too: [batch]."""
    return -10.0 * noise_var.clamp_min(1e-30).log10()


def observed(measured: Measurement, found: Estimate, knots: tuple[float, ...]) -> dict[FeatureName, Tensor]:
    """Logarithms of energy and residual, each [batch]; beyond the knots σ² counts as that of the last."""
    snr = snr_db(measured.noise_var).clamp(knots[0], knots[-1])
    residual = (measured.y - measured.phi.apply(found.signal)).abs().square().mean(1)
    energy = found.signal.abs().square().mean(1)
    return {
        "energy": (energy + LEAST_ENERGY).log(),
        "residual": (residual * 10 ** (snr / 10) + LEAST_RESIDUAL).log(),
    }


def hats(knots: tuple[float, ...], at: Tensor) -> Tensor:
    """Weights of the knots in a piecewise-linear function, constant beyond the ends. at: [batch] -> [batch, knots]."""
    places = at.new_tensor(knots)
    if len(knots) == 1:
        return torch.ones_like(at)[:, None]
    inside = at.clamp(places[0], places[-1])
    right = torch.searchsorted(places, inside).clamp(1, len(knots) - 1)
    share = (inside - places[right - 1]) / (places[right] - places[right - 1])
    weights = at.new_zeros(len(at), len(knots))
    return weights.scatter(1, right[:, None] - 1, (1 - share)[:, None]).scatter(1, right[:, None], share[:, None])


def _check_ascending(name: str, values: tuple[float, ...]) -> None:
    if not values or any(not second > first for first, second in pairwise(values)):
        raise ValueError(f"{name} must hold ascending numbers, got {list(values)}")
