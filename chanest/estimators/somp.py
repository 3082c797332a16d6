"""Simultaneous OMP: one support of angles for all subcarriers, coefficients of its own for each."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from chanest.bases.grid import Choices, GridEstimator, Settings
from chanest.dictionaries import KroneckerMap, link_dictionary
from chanest.frontend import BeamformingMap
from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import LinearMap
from vlista_core.solvers.base import State, iterate


class SOMPEstimator(GridEstimator):
    """Simultaneous OMP (Tropp, Gilbert & Strauss 2006) on the angles; no grid of delays.

    Each round adds the atom with the largest Σ_k |a_jᴴr_k|/‖a_j‖ over the residuals r_k of the subcarriers and projects
    every y_k on the atoms so far, until the residuals together are within S·m·level or at `density`·m atoms. Measurements
    are taken as they come: behind combiners that are not orthogonal the noise is coloured, and SOMP does not look. With
    one subcarrier it is OMP.
    """

    name = "somp"
    summary = "simultaneous OMP: one set of angles for all subcarriers"
    defaults: ClassVar[Settings] = {"oversampling": 1.5, "noise_factor": 1.0, "model_error": 0.02, "density": 0.25}
    choices: ClassVar[Choices] = {
        "noise_factor": (0.7, 1.0, 1.4, 2.0),
        "model_error": (0.0, 0.02, 0.04, 0.08, 0.12),
        "oversampling": (1.5, 2.0, 3.0),
        "density": (0.15, 0.25, 0.4),
    }

    def grid(self) -> KroneckerMap:
        return link_dictionary(self.link.rx, self.link.tx, None, oversampling=self.settings["oversampling"])

    def solve(self, measured: Measurement, dictionary: KroneckerMap) -> Estimate:
        leveled = Measurement(measured.y, measured.phi, self.level(measured))
        code, taken = self.pursue(leveled, dictionary)
        return Estimate(dictionary.apply(code.flatten(0, 1)).reshape(len(code), -1), code.flatten(1), iterations=taken)

    def pursue(self, system: Measurement, dictionary: KroneckerMap) -> tuple[Tensor, Tensor]:
        """The code [batch, S, atoms] that brings the mean |y - Ax|² to system.noise_var, and its rounds [batch]."""
        subcarriers = self.link.subcarriers
        size, measurements, atoms = len(system.y), system.y.shape[1] // subcarriers, dictionary.shape[1]
        most = min(max(1, int(self.settings["density"] * measurements)), atoms)
        kind, device = system.y.dtype, system.y.device
        norms = (one_subcarrier(system.phi, subcarriers) @ dictionary).column_norms()
        start = (
            system.y.reshape(size, subcarriers, measurements),
            torch.zeros(size, most, measurements, dtype=kind, device=device),
            torch.eye(most, dtype=kind, device=device).expand(size, -1, -1).clone(),
            torch.zeros(size, most, subcarriers, dtype=kind, device=device),
            torch.zeros(size, most, dtype=torch.int64, device=device),
            torch.where(norms > 0, 1.0 / norms, 0.0).expand(size, -1).clone(),
        )

        def step(now: Measurement, state: State, t: int) -> tuple[State, Tensor]:
            return _add_atom(now, dictionary, state, t)

        (_, _, triangle, projections, support, _), taken = iterate(system, start, step, most)
        values = torch.linalg.solve_triangular(triangle, projections, upper=True).mT
        code = torch.zeros(size, subcarriers, atoms, dtype=kind, device=device)
        return code.scatter_add(2, support[:, None, :].expand_as(values), values), taken


def one_subcarrier(phi: LinearMap, subcarriers: int) -> LinearMap:
    """Φ₁ of Φ = I_S ⊗ Φ₁: what the beams measure of each subcarrier."""
    if subcarriers == 1:
        return phi
    if not isinstance(phi, BeamformingMap) or phi.subcarriers != subcarriers:
        came = f"one of {phi.subcarriers}" if isinstance(phi, BeamformingMap) else type(phi).__name__
        raise ValueError(
            f"phi must be a BeamformingMap of {subcarriers} subcarriers, which tells what the beams measure of each, "
            f"got {came}"
        )
    return phi.one_subcarrier()


def _add_atom(system: Measurement, dictionary: KroneckerMap, state: State, t: int) -> tuple[State, Tensor]:
    """One atom more for all subcarriers; Q, R and the support grow in place, by nothing for a sample that is done.

    Residual [batch, S, m], Q [batch, K, m], R [batch, K, K], Qᴴy [batch, K, S], support [batch, K], weights [batch, atoms].
    """
    residual, basis, triangle, projections, support, weight = state
    (size, subcarriers, _), precision = residual.shape, torch.finfo(residual.real.dtype).eps
    back = system.phi.adjoint(residual.flatten(1)).reshape(size * subcarriers, -1)
    correlation = dictionary.adjoint(back).abs().reshape(size, subcarriers, -1).sum(1) * weight
    strongest, chosen = correlation.max(1)
    atom = (one_subcarrier(system.phi, subcarriers) @ dictionary).columns(chosen[:, None])[:, :, 0]
    direction = atom
    coefficients = torch.zeros_like(projections[:, :, 0])
    for _ in range(2 if t else 0):
        overlap = direction[:, None, :] @ basis[:, :t].mH
        coefficients[:, :t] += overlap[:, 0]
        direction = direction - (overlap @ basis[:, :t])[:, 0]
    length = torch.linalg.vector_norm(direction, dim=1)
    usable = (strongest > 0) & (length > 16 * precision * torch.linalg.vector_norm(atom, dim=1))
    usable &= ~_within(residual, system.noise_var)
    unit = torch.where(usable[:, None], direction / length.clamp_min(torch.finfo(length.dtype).tiny)[:, None], 0)
    coefficients[:, t] = length
    triangle[:, :, t] = torch.where(usable[:, None], coefficients, triangle[:, :, t])
    basis[:, t] = unit
    projection = (residual @ unit.conj()[:, :, None])[:, :, 0]
    projections[:, t] = projection
    support[:, t] = chosen
    weight.scatter_(1, chosen[:, None], torch.zeros_like(weight[:, :1]))
    residual = residual - projection[:, :, None] * unit[:, None, :]
    done = ~usable | _within(residual, system.noise_var)
    return (residual, basis, triangle, projections, support, weight), done


def _within(residual: Tensor, level: Tensor) -> Tensor:
    """Whether the mean of |r|² over subcarriers and measurements is at most `level`. [batch, S, m] -> [batch] bool."""
    return residual.abs().square().mean((1, 2)) <= level
