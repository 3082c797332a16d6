"""What every Covariance must satisfy, besides the checks of a LinearMap."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vlista_core.estimate import Measurement
from vlista_core.gaussian import Covariance, condition
from vlista_core.linops import DenseMap, LinearMap
from vlista_core.testing.tools import allowed, check_close, normal

_ROWS = 5
_TOLERANCE, _LOOSE = (1e-10, 1e-4), (1e-4, 1e-4)


@dataclass(frozen=True)
class CovarianceCase:
    """A named way to build a covariance of a dtype on the CPU, the same each time, and maps to look at it through.

    The covariance is one for all samples, or has one for each of those in the maps. `maps` are those whose structure it uses;
    a dense one is always tried too, unless `dense` says that it takes none.
    """

    name: str
    make: Callable[[torch.dtype], Covariance]
    maps: tuple[Callable[[torch.dtype], LinearMap], ...] = ()
    dense: bool = True

    def all_maps(self, dtype: torch.dtype) -> list[LinearMap]:
        """Every Φ to look through."""
        prior = self.make(dtype)
        size = prior.batch or 3
        dense = [DenseMap(normal((size, _ROWS, prior.length), dtype, 5))] if self.dense else []
        return [*(make(dtype) for make in self.maps), *dense]


def check_definite(case: CovarianceCase, dtype: torch.dtype) -> None:
    """R is Hermitian and not negative; `variances` are its diagonal."""
    prior = case.make(dtype)
    matrix = prior.materialize()
    scale = float(matrix.abs().max())
    check_close(f"{case.name}: R is not Hermitian", matrix, matrix.mH, _TOLERANCE, scale)
    least = float(torch.linalg.eigvalsh(matrix).min())
    assert least >= -allowed(_TOLERANCE, dtype) * scale * len(matrix[0]), (
        f"{case.name}: R has the eigenvalue {least:.1e}"
    )
    check_close(f"{case.name}: variances", prior.variances(), matrix.diagonal(dim1=1, dim2=2).real, _TOLERANCE, scale)


def check_seen(case: CovarianceCase, dtype: torch.dtype) -> None:
    """`seen` is ΦRΦᴴ for a dense Φ and for every map whose structure is used."""
    prior = case.make(dtype)
    for phi in case.all_maps(dtype):
        matrix = phi.materialize()
        expected = matrix @ prior.materialize() @ matrix.mH
        check_close(f"{case.name}: seen through {type(phi).__name__}", prior.seen(phi), expected, _TOLERANCE)


def check_mixture(case: CovarianceCase, dtype: torch.dtype) -> None:
    """The mixture of a family is the weighted sum of its members, and can be looked at through the same maps."""
    family = case.make(dtype)
    members = family.batch or 1
    weights = torch.rand(4, members, generator=torch.Generator().manual_seed(3), dtype=dtype.to_real())
    expected = torch.einsum("bk,knm->bnm", weights.to(dtype), family.materialize())
    check_close(f"{case.name}: mixture", family.mixture(weights).materialize(), expected, _TOLERANCE)


def check_condition(case: CovarianceCase, dtype: torch.dtype) -> None:
    """Mean, variance and evidence are those of the textbook, with and without probes, for every map."""
    prior = case.make(dtype)
    for phi in case.all_maps(dtype):
        measured = _measured(phi, prior)
        probes = DenseMap(normal((len(measured.y), 2, prior.length), dtype, 7))
        mean, covariance, evidence = _textbook(prior, measured)
        plain, probed = condition(prior, measured), condition(prior, measured, probes)
        spread = covariance.diagonal(dim1=1, dim2=2).real
        rows = probes.materialize()
        through = (rows @ covariance @ rows.mH).diagonal(dim1=1, dim2=2).real
        floored = spread.maximum(0.01 * spread.mean(1, keepdim=True))
        what = f"{case.name} through {type(phi).__name__}"
        check_close(f"{what}: mean", plain.mean, mean, _TOLERANCE)
        check_close(f"{what}: mean of probes", probed.mean, (rows @ mean[..., None])[..., 0], _TOLERANCE)
        check_close(f"{what}: variance of probes", probed.variance, through, _TOLERANCE)
        check_close(f"{what}: evidence", plain.log_evidence, evidence, _TOLERANCE)
        gap = (plain.variance - spread).abs().minimum((plain.variance - floored).abs())
        assert float((gap / spread.abs().amax()).max()) <= 100 * allowed(_TOLERANCE, dtype), f"{what}: variance"


def check_extreme_noise(case: CovarianceCase, dtype: torch.dtype) -> None:
    """Much noise gives the prior back; hardly any leaves what Φ does not see; nothing is negative or not finite."""
    prior = case.make(dtype)
    for phi in case.all_maps(dtype):
        measured = _measured(phi, prior)
        for level in (1e-10, 1e10):
            noise = torch.full_like(measured.noise_var, level)
            found = condition(prior, Measurement(measured.y, measured.phi, noise))
            for name, value in (("mean", found.mean), ("variance", found.variance), ("evidence", found.log_evidence)):
                assert bool(torch.isfinite(value).all()), f"{case.name}: {name} is not finite for noise {level:g}"
            assert bool((found.variance >= 0).all()), f"{case.name}: negative variance for noise {level:g}"
            if level > 1:
                check_close(f"{case.name}: much noise", found.variance, prior.variances(), _LOOSE)


def check_scale(case: CovarianceCase, dtype: torch.dtype) -> None:
    """A signal c times as large, with y and the noise, has a mean c and a variance c² times as large, for c of 1e-6 and 1e6."""
    prior = case.make(dtype)
    members = prior.batch or 1
    for phi in case.all_maps(dtype):
        measured = _measured(phi, prior)
        plain = condition(prior, measured)
        for unit in (2.0**-20, 2.0**20):
            larger = prior.mixture(unit**2 * torch.eye(members, dtype=dtype.to_real()))
            found = condition(larger, Measurement(unit * measured.y, phi, unit**2 * measured.noise_var))
            what = f"{case.name} through {type(phi).__name__}, {unit:.0e} times as large"
            check_close(f"{what}: mean", found.mean / unit, plain.mean, _TOLERANCE)
            check_close(f"{what}: variance", found.variance / unit**2, plain.variance, _TOLERANCE)


def check_blind(case: CovarianceCase, dtype: torch.dtype) -> None:
    """A Φ of zeros gives the prior back: a mean of zero and the prior's variances, with noise or hardly any."""
    prior = case.make(dtype)
    for phi in case.all_maps(dtype):
        blind = phi.with_tensors([torch.zeros_like(tensor) for tensor in phi.tensors()])
        measured = _measured(blind, prior)
        for noise in (measured.noise_var, torch.full_like(measured.noise_var, 1e-10)):
            found = condition(prior, Measurement(measured.y, blind, noise))
            what = f"{case.name} through {type(phi).__name__} of zeros"
            assert bool((found.mean == 0).all()), f"{what}: the mean is not zero"
            expected = prior.variances().expand_as(found.variance)
            floored = expected.maximum(0.01 * expected.mean(1, keepdim=True))
            check_close(f"{what}: variance", found.variance, floored, _LOOSE)


COVARIANCE_CHECKS: tuple[Callable[[CovarianceCase, torch.dtype], None], ...] = (
    check_definite,
    check_seen,
    check_mixture,
    check_condition,
    check_extreme_noise,
    check_scale,
    check_blind,
)


def _measured(phi: LinearMap, prior: Covariance) -> Measurement:
    size = phi.batch or prior.batch or 3
    y = normal((size, phi.shape[0]), prior.dtype, 11)
    noise = torch.linspace(0.1, 0.4, size, dtype=prior.dtype.to_real())
    return Measurement(y, phi, noise)


def _textbook(prior: Covariance, measured: Measurement) -> tuple[Tensor, Tensor, Tensor]:
    """E s, its covariance and log p(y), by NumPy's route: dense matrices and an eigendecomposition."""
    phi, covariance = measured.phi.materialize(), prior.materialize()
    identity = torch.eye(phi.shape[1], dtype=phi.dtype)
    total = phi @ covariance @ phi.mH + measured.noise_var[:, None, None] * identity
    values, vectors = torch.linalg.eigh(total)
    inverse = (vectors / values[:, None, :]) @ vectors.mH
    gain = covariance @ phi.mH @ inverse
    fit = (measured.y[:, None, :].conj() @ inverse @ measured.y[..., None]).real.flatten()
    half = 1.0 if phi.is_complex() else 0.5
    evidence = -half * (fit + values.log().sum(1))
    return (gain @ measured.y[..., None])[..., 0], covariance - gain @ phi @ covariance, evidence
