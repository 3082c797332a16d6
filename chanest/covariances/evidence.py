"""Covariances learned from measurements alone: the powers of directions that make y most probable, for one class or for many.

R_k = Ψ diag(p_k) Ψᴴ with atoms on a fine grid. Beams change from recording to recording, so
that what one of them cannot tell of p_k others do. With C = ΦR_kΦᴴ + σ²I, summed over the recordings that belong to class k,
    g = Σ |ψᴴΦᴴC⁻¹y|²     how much the data ask for an atom
    q = Σ ψᴴΦᴴC⁻¹Φψ       what the model expects of it
and the step p ← p·g/q has the stationary points of the evidence for its fixed points. Majorise-minimise, p ← p·√(g/q), has the
same ones and takes twice as many passes, EM many more. Sums over recordings are tables of lags, so that the grid is met
once per class and pass.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.covariances.angular import angular_grid_of
from chanest.covariances.lag_layout import LagLayout
from chanest.covariances.lags import BeamView, LagCovariance
from vlista_core.estimate import Measurement
from vlista_core.gaussian import condition

_FINE, _COARSE = 6.0, 4.0
"""Points of the grid per antenna along an axis. What falls between two points needs the powers of both: with three per
antenna a site of narrow clusters loses 1.0 dB at 20 dB, with four 0.4, with six 0.05."""
_MOST_POWERS = 2**25
"""Of all classes, with which the grid is fine."""
_BLOCK = 64
_TINY = 1e-20


class Asked(NamedTuple):
    """What recordings say of the classes that they belong to."""

    data: Tensor
    """Lag sums of vvᴴ, v = ΦᴴC⁻¹y: [classes, receive kinds, transmit lags]."""
    model: Tensor
    """Lag sums of ΦᴴC⁻¹Φ, as many."""
    log_evidence: Tensor
    """[recordings]."""
    mean: Tensor
    """E[h | y]: [recordings, n]."""


class SpectralFamily:
    """Classes of channels, each with powers of all directions and with a probability."""

    def __init__(self, rx: Array, tx: Array, classes: int) -> None:
        """One class at first, all directions alike. classes: how many there will be after `split`."""
        self.layout, grid = LagLayout(rx, tx), angular_grid_of(rx, tx, _FINE)
        if classes * grid.atoms > _MOST_POWERS:
            grid = angular_grid_of(rx, tx, _COARSE)
        columns, rows = (_ramps(points, size) for points, size in zip(grid.axes, (tx.columns, tx.rows), strict=False))
        self._columns, self._rows, self._received = columns, rows, grid.receive_ramps
        shape = 1, self._received.shape[1], columns.shape[1], rows.shape[1]
        self.powers = torch.full(shape, 1.0 / grid.atoms)
        """[classes, arrivals, columns and rows of departures]."""
        self.log_prior = torch.zeros(1)

    def split(self, classes: int) -> None:
        """Have as many classes, all like the first."""
        self.powers = self.powers[:1].repeat(classes, 1, 1, 1)
        self.log_prior = torch.full((classes,), -math.log(classes))

    def __len__(self) -> int:
        return len(self.powers)

    def tables(self) -> Tensor:
        """R_k as tables of lags: [classes, receive kinds, transmit lags]."""
        found = []
        for powers in self.powers.to(self._rows.dtype):
            at_lags = self._columns @ powers @ self._rows.mT
            found.append(self._received @ at_lags.flatten(1))
        return torch.stack(found)

    @torch.no_grad()
    def asked(self, measured: Measurement, labels: Tensor) -> Asked:
        """labels: the class of each recording, [recordings]."""
        tables = self.tables()
        data, model = torch.zeros_like(tables), torch.zeros_like(tables)
        evidence, means = [], []
        for some in torch.arange(len(labels)).split(_BLOCK):
            part, own = measured.select(some), labels[some]
            view = BeamView(self.layout, part.phi)
            posterior = condition(LagCovariance(tables[own], self.layout, view), part)
            data.index_add_(0, own, self.layout.products(posterior.gradient))
            model.index_add_(0, own, view.pulled_back(posterior.precision))
            evidence.append(posterior.log_evidence)
            means.append(posterior.mean)
        return Asked(data, model, torch.cat(evidence), torch.cat(means))

    def improve(self, asked: Asked) -> None:
        """A step of the powers of every class that has recordings."""
        for k, (data, model) in enumerate(zip(asked.data, asked.model, strict=True)):
            expected = self._of_atoms(model)
            if float(expected.amax()) > 0:
                ratio = self._of_atoms(data) / expected.clamp_min(_TINY)
                self.powers[k] = self.powers[k] * ratio.clamp_min(_TINY)

    @torch.no_grad()
    def log_joint(self, measured: Measurement, classes: Tensor) -> Tensor:
        """log p(k, y) of some classes, which may be others for each recording: [recordings, some] -> [recordings, some]."""
        tables, found = self.tables(), []
        for some in torch.arange(len(classes)).split(_BLOCK):
            part = measured.select(some)
            view = BeamView(self.layout, part.phi)
            each = [condition(LagCovariance(tables[own], self.layout, view), part) for own in classes[some].unbind(1)]
            found.append(torch.stack([posterior.log_evidence for posterior in each], 1))
        return self.log_prior[classes] + torch.cat(found)

    def nearest(self, count: int) -> Tensor:
        """The classes whose covariances are most alike that of each, itself among them: [classes, at most count]."""
        rows = torch.view_as_real(self.tables() * self.layout.multiplicity.sqrt()).flatten(1)
        rows = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(_TINY)
        nearest: Tensor = (rows @ rows.mT).topk(min(count, len(self)), 1).indices
        return nearest

    def _of_atoms(self, sums: Tensor) -> Tensor:
        """ψᴴQψ of every atom from the lag sums of Q: [receive kinds, transmit lags] -> as `powers`."""
        arriving = self._received.mT @ (sums.conj() * self.layout.sides)
        at_lags = arriving.unflatten(1, (len(self._columns), len(self._rows)))
        forms: Tensor = (self._columns.mT @ at_lags @ self._rows).real
        return forms


def _ramps(points: int, size: int) -> Tensor:
    """exp(j·phase·lag) at the lags of an axis of `size` elements for phases spread evenly over the circle: [lags, points]."""
    phases = 2 * math.pi * (torch.arange(points) - points // 2) / points
    angle = torch.outer(torch.arange(1 - size, size).to(phases), phases)
    return torch.polar(torch.ones_like(angle), angle)
