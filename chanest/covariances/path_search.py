"""Paths on their way to more evidence: powers by MacKay's fixed point, directions by Gauss–Newton, in whitened columns."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from chanest.covariances.offgrid import Paths
from vlista_core.estimate import Measurement
from vlista_core.linalg import cholesky
from vlista_core.prox import squared_modulus

_DAMPING, _EASIER, _HARDER = 0.1, 0.3, 5.0
"""Of Gauss–Newton: at first, after a step that was taken, after one that was not."""
_WORTH = 0.01
"""Nats that a step must gain: less is within the rounding of an evidence."""
_LEAST_USED = 1e-3
_LARGEST = 1e3
AXES = 4
"""Columns and rows of the transmitter, columns and rows of the receiver."""


@dataclass(frozen=True, eq=False)
class Fit:
    """Gains of the paths given y, and how well they explain it, for columns that are whitened by the rest of the model."""

    evidence: Tensor
    """Up to log det of the rest: [batch]."""
    gains: Tensor
    """Posterior means: [batch, paths, pol]."""
    scaled: Tensor
    """√P times the conjugate columns, as rows: [batch, paths·pol, m]."""
    factor: Tensor
    """Of I + scaled scaledᴴ: [batch, paths·pol, paths·pol]."""


class PathSearch:
    """Paths of a batch on their way to more evidence."""

    def __init__(self, measured: Measurement, factor: Tensor, paths: Paths, powers: Tensor, found: Tensor) -> None:
        """factor: L of the model without the paths; powers: [batch, paths, pol]; found: which paths there are."""
        self.phi, self.factor, self.found = measured.phi, factor, found
        self.y = self._white(measured.y[:, None])[:, 0]
        self.power = squared_modulus(self.y).sum(1)
        self.paths, self.powers = paths, powers
        self.columns = self._columns(paths, slopes=True)
        self.now = self._fit(self.columns[:, 0], powers)
        self.damping = torch.full_like(self.now.evidence, _DAMPING)

    def improve(self, furthest: Tensor, *, last: bool) -> None:
        """One step of powers and directions together, taken where it helps.

        furthest: of a direction at the most, [4]; last: slopes, which a further step would need, are left out.
        """
        powers, paths = self._mackay(), self.paths.moved(self._gauss_newton(furthest))
        columns = self._columns(paths, slopes=not last)
        tried = self._fit(columns[:, 0], powers)
        better = tried.evidence > self.now.evidence + _WORTH
        self._take(better, tried, powers, paths, columns)
        self.damping = self.damping * torch.where(better, _EASIER, _HARDER)

    def _mackay(self) -> Tensor:
        """P ← |E x|²/(1 - Var x/P)."""
        left = torch.cholesky_inverse(self.now.factor).diagonal(dim1=1, dim2=2).real.reshape(self.powers.shape)
        powers = squared_modulus(self.now.gains) / (1.0 - left).clamp_min(_LEAST_USED)
        return powers.clamp_max(_LARGEST) * self.found[:, :, None]

    def _gauss_newton(self, furthest: Tensor) -> Tensor:
        """Steps of the phases with the gains projected out: [batch, 4, paths].

        A path without power, and an axis of one element, has no slope, and so no step.
        """
        now, (batch, paths) = self.now, self.found.shape
        slopes = (now.gains[:, None, :, :, None] * self.columns[:, 1:]).sum(3).flatten(1, 2)
        fitted = torch.bmm(now.gains.reshape(batch, 1, -1), self.columns[:, 0].flatten(1, 2))
        conjugate = slopes.conj().resolve_conj()
        inside = torch.bmm(now.scaled, slopes.mT)
        explained = torch.bmm(inside.mH, torch.cholesky_solve(inside, now.factor))
        curvature = (torch.bmm(conjugate, slopes.mT) - explained).real
        curvature.diagonal(dim1=1, dim2=2).mul_(1.0 + self.damping[:, None]).add_(1.0)
        slope = torch.bmm(conjugate, (self.y[:, None] - fitted).mT).real
        step = torch.cholesky_solve(slope, cholesky(curvature)).reshape(batch, AXES, paths)
        return step.clamp(-furthest[:, None], furthest[:, None])

    def _fit(self, columns: Tensor, powers: Tensor) -> Fit:
        """columns: whitened, [batch, paths, pol, m]."""
        root = powers.sqrt()
        scaled = (root[..., None] * columns).flatten(1, 2)
        conjugate = scaled.conj().resolve_conj()
        gram = torch.bmm(conjugate, scaled.mT)
        gram.diagonal(dim1=1, dim2=2).add_(1.0)
        factor = cholesky(gram)
        matched = torch.bmm(conjugate, self.y[:, :, None])
        solved = torch.cholesky_solve(matched, factor)
        misfit = self.power - (matched.conj() * solved).real.sum((1, 2))
        volume = 2 * factor.diagonal(dim1=1, dim2=2).real.log().sum(1)
        return Fit(-(misfit + volume), root * solved.reshape(powers.shape), conjugate, factor)

    def _columns(self, paths: Paths, *, slopes: bool) -> Tensor:
        """Whitened, the columns themselves first: [batch, 5 with slopes and 1 without, paths, pol, m]."""
        columns = paths.columns(self.phi, slopes=slopes)
        white = self._white(columns.flatten(1, -2)).reshape(columns.shape)
        return white if slopes else white[:, None]

    def _white(self, rows: Tensor) -> Tensor:
        """L⁻¹ times every row: [batch, k, m]."""
        white: Tensor = torch.linalg.solve_triangular(self.factor, rows.mT, upper=False)
        return white.mT

    def _take(self, better: Tensor, tried: Fit, powers: Tensor, paths: Paths, columns: Tensor) -> None:
        """Take what was tried for the samples where it is better: [batch] bool."""
        if bool(better.all()):
            self.now, self.powers, self.paths, self.columns = tried, powers, paths, columns
            return

        def chosen(new: Tensor, old: Tensor) -> Tensor:
            return torch.where(better.reshape(-1, *[1] * (old.ndim - 1)), new, old)

        names = ("evidence", "gains", "scaled", "factor")
        self.now = Fit(*(chosen(getattr(tried, name), getattr(self.now, name)) for name in names))
        self.powers, self.columns = chosen(powers, self.powers), chosen(columns, self.columns[:, : columns.shape[1]])
        departing = chosen(paths.departing, self.paths.departing)
        self.paths = replace(self.paths, departing=departing, arriving=chosen(paths.arriving, self.paths.arriving))
