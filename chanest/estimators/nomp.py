"""Newtonised orthogonal matching pursuit over continuous directions (after Mamandipoor, Ramasamy & Madhow 2016).

h = Σ_l g_l ψ(ω_l): a path has a phase step per axis of both arrays, one per subcarrier where there are several (its delay), and
a complex gain for each pair of polarisations. Paths are added one at a time:

1. the peak of |ψᴴΦᴴr|²/‖Φψ‖² on an oversampled grid, r the residual so far;
2. Levenberg–Marquardt steps of the phases of all paths together, gains solved for (`chanest.plane_waves`);
3. the path stays if ‖r‖² fell by more than τσ², which pure noise would reach with the probability `false_alarm`.
"""

import math
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from numpy.polynomial import Polynomial
from scipy import special
from torch import Tensor

from chanest.bases.grid import Choices, GridEstimator, Settings
from chanest.covariances.columns import ColumnCovariance
from chanest.dictionaries import KroneckerMap, Link
from chanest.estimators.somp import one_subcarrier
from chanest.frontend import whitened_measurement
from chanest.plane_waves import WIDE, Fit, PlaneWaves, Target, error_variances, refined
from chanest.uncertainty.estimate import independent
from vlista_core.estimate import Estimate, Measurement
from vlista_core.gaussian import condition
from vlista_core.linops import LinearMap
from vlista_core.prox import squared_modulus

_STEPS, _LAST_STEPS = 4, 8
"""Of all phases after each new path, and when the last one has been found."""
_LEAST_NOISE = 1e-10
"""σ² is taken for that share of the mean |y|² at least: single precision shows no weaker path."""
_SHARE = 0.3
"""Of the E|h|² that y shows, the power of a path before its gain is known: Φ may hardly see its direction."""
_HIGHEST_THRESHOLD = 650.0
Found = list[tuple[Tensor, Fit]]
"""Which samples have a given number of paths, and these paths; samples without any are left out."""


class NOMP(GridEstimator):
    """Paths of continuous directions, as many as stand out from the noise, at most `density`·m/(P + D/2) and `most`.

    P gains and D phases of a path take up (P + D/2)σ² of noise. So the gains are not those of least squares: they are the
    LMMSE estimate for gains of the power that least squares found and noise of (1 + D/2P)σ².

    The variance is to first order in gains and phases, given the number of paths, and what the residual has above noise is
    spread evenly over h. It leaves out that a path may be a false one, that one below the threshold was missed among noise,
    and that a search may have ended at a wrong peak. On dense channels such as CDL it is far too small.
    """

    name = "nomp"
    mode_by_mode = False
    """Delays are continuous too: taken with the directions they are worth 2 to 4 dB on `wideband_64x4`."""
    summary = "Newtonised OMP: paths of continuous directions, stopped at a stated rate of false alarms"
    alike_subcarriers = True
    defaults: ClassVar[Settings] = {"oversampling": 2.0, "false_alarm": 0.01, "density": 0.5, "most": 32}
    choices: ClassVar[Choices] = {
        "false_alarm": (0.001, 0.01, 0.1, 0.3),
        "density": (0.25, 0.5, 0.75),
        "oversampling": (1.5, 2.0, 3.0),
    }
    chunk_bytes = 2**25

    def __init__(self, link: Link, settings: Settings) -> None:
        super().__init__(link, settings)
        self.waves = PlaneWaves(link)

    def chunk(self, measured: Measurement) -> int:
        """By the correlations with the grid and the derivatives of all paths."""
        atoms, subcarriers = self.dictionary_for(measured.y).shape[1], self.link.subcarriers
        derivatives = self._most(measured.y.shape[1]) * self.waves.gains * (1 + self.waves.coordinates)
        seen = derivatives * (measured.y.shape[1] // subcarriers + subcarriers)
        return self.chunk_bytes // (measured.y.dtype.itemsize * 2 * atoms + WIDE.itemsize * seen)

    def solve(self, measured: Measurement, dictionary: KroneckerMap) -> Estimate:
        white = whitened_measurement(measured)
        signal = torch.zeros_like(white.phi.adjoint(white.y))
        count = torch.zeros(len(signal), dtype=torch.int64, device=signal.device)
        for some, fit in self.pursue(white, dictionary):
            part = _in_double(white.select(some))
            louder = self.waves.freedom / self.waves.gains * part.noise_var
            posterior = condition(self.prior(fit), Measurement(part.y, part.phi, louder))
            signal[some] = posterior.mean.to(signal.dtype)
            count[some] = fit.phases.shape[1]
        return Estimate(signal, iterations=count)

    def prior(self, fit: Fit) -> ColumnCovariance:
        """Paths in the directions of a fit, with gains of the power that it found."""
        columns = self.waves.columns(fit.phases)
        return ColumnCovariance(columns.delay, columns.space * fit.gains.abs().flatten(1)[:, None])

    def spread(self, measured: Measurement, found: Estimate, probes: LinearMap | None) -> Tensor:
        white = whitened_measurement(measured)
        left, free = squared_modulus(white.y).sum(1), torch.full_like(white.noise_var, white.y.shape[1])
        errors = torch.zeros(len(left), self.signal_length if probes is None else probes.shape[0]).to(left)
        for some, fit in self.pursue(white, self.dictionary_for(white.y)):
            part = _in_double(white.select(some))
            own = probes if probes is None or probes.batch is None else probes.select(some)
            errors[some] = self._errors(part, fit, own).to(left.dtype)
            left[some] -= fit.explained.to(left.dtype)
            free[some] -= self.waves.freedom * fit.phases.shape[1]
        seen = white.phi.squared_frobenius_norm().clamp_min(torch.finfo(left.dtype).tiny)
        missed = ((left - free.clamp_min(0.0) * white.noise_var) / seen).clamp_min(0.0)
        return errors + independent(missed[:, None].expand(-1, self.signal_length), probes)

    def pursue(self, measured: Measurement, dictionary: KroneckerMap) -> Found:
        """The paths of all samples that have some, grouped by how many they have. measured: with white noise."""
        if measured.y.is_meta:
            return []
        count, grid, wide = measured.y.shape[1], self.waves.grid(self.settings["oversampling"]), _in_double(measured)
        target = Target(wide.y, one_subcarrier(wide.phi, self.link.subcarriers), _ridge(wide))
        weight = _weights(measured.phi @ dictionary, target.ridge / self.signal_length)
        least, place = self.threshold(count) * wide.noise_var, torch.arange(len(wide.y), device=wide.y.device)
        now, residual, groups = Fit.of_nothing(self.waves, target.y), target.y, []
        for _ in range(self._most(count)):
            peak = grid.peak(weight * dictionary.adjoint(measured.phi.adjoint(residual.to(measured.y.dtype))))
            trial = refined(self.waves, target, torch.cat([now.phases, peak[:, None]], 1), _STEPS)
            stays = trial.explained - now.explained > least
            groups.append((place[~stays], target.select(~stays), now.phases[~stays]))
            now, target, measured = trial.select(stays), target.select(stays), measured.select(stays)
            place, least, weight = place[stays], least[stays], weight[stays]
            if not len(place):
                break
            residual = target.y - self.waves.seen(target.phi, now.phases).combine(now.gains.flatten(1))
        groups.append((place, target, now.phases))
        return [
            (some, refined(self.waves, part, phases, _LAST_STEPS))
            for some, part, phases in groups
            if len(some) and phases.shape[1]
        ]

    def threshold(self, measurements: int) -> float:
        """τ of the rate of false alarms, see `detection_threshold`."""
        return detection_threshold(self.settings["false_alarm"], self.waves.gains, self.waves.cells, measurements)

    def _most(self, measurements: int) -> int:
        """How many paths are looked for in m measurements."""
        return max(1, int(min(self.settings["density"] * measurements / self.waves.freedom, self.settings["most"])))

    def _errors(self, wide: Measurement, fit: Fit, probes: LinearMap | None) -> Tensor:
        """Variances that come from gains and phases, which are somewhere on the circle: variance π²/3 before y is seen."""
        phi, variance = one_subcarrier(wide.phi, self.link.subcarriers), wide.noise_var
        powers = squared_modulus(fit.gains).clamp_min(torch.finfo(variance.dtype).tiny)
        doubts = variance[:, None, None] / powers, variance * 3 / (2 * math.pi**2)
        return variance[:, None] * error_variances(self.waves, phi, fit, doubts, probes)


@lru_cache
def detection_threshold(false_alarm: float, gains: int, cells: tuple[float, ...], measurements: int) -> float:
    """τ such that a search among pure noise of variance σ² explains more than τσ² of ‖y‖² with that probability at most.

    In a fixed direction a path of P gains explains σ²·Γ(P, 1) of noise. Over all directions that is a chi-square field, whose
    excursions above τ = r²/2 number Π c_i·2^{-D/2}(-d/dr)^D P(χ_2P > r) in the mean (Adler & Taylor 2007, chapter 15), c_i the
    `cells` of its D axes: for one axis and one gain Rice's c √τ e^-τ. No search explains more than ‖y‖², which is σ²·Γ(m, 1).
    """
    axes = len(cells)
    density = Polynomial([0.0] * (2 * gains - 1) + [2 ** (1 - gains) / math.gamma(gains)])
    for _ in range(axes - 1):
        density = Polynomial([0.0, 1.0]) * density - density.deriv()

    levels = np.arange(0.0, _HIGHEST_THRESHOLD, 0.01)
    one = special.gammaincc(gains, levels)
    looks = math.prod(cells) * 2 ** (-axes / 2) * density(np.sqrt(2 * levels)) * np.exp(-levels) if axes else one
    chance = np.minimum(np.maximum(one, looks), special.gammaincc(measurements, levels))
    return float(levels[chance >= false_alarm].max())


def _weights(atoms: LinearMap, ridge: Tensor) -> Tensor:
    """What correlations with unit atoms are multiplied by, 1/√(‖Φψ‖² + ridge), 0 where Φ does not see ψ: [batch, atoms]."""
    norms = atoms.column_norms()
    return torch.where(norms > 0, (norms.square() + ridge.to(norms.dtype)[:, None]).rsqrt(), 0.0)


def _in_double(measured: Measurement) -> Measurement:
    """The same in double precision, with the least noise that y can show."""
    y = measured.y.to(WIDE)
    least = _LEAST_NOISE * squared_modulus(y).mean(1)
    return Measurement(y, measured.phi.cast(WIDE), measured.noise_var.to(y.real.dtype).maximum(least))


def _ridge(measured: Measurement) -> Tensor:
    """σ² over the power that a path has before its gain is known: [batch]."""
    shown = squared_modulus(measured.y).sum(1) / measured.phi.squared_frobenius_norm()
    return torch.where(shown > 0, measured.noise_var / (_SHARE * shown), 0.0)
