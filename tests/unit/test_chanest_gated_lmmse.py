"""Tables of lags, the codebook, the mixture and gated-lmmse on arrays small enough to check against whole matrices."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn

from chanest.covariances.families import ASSUMED_NOISE, FLOOR, CovarianceCodebook, LagComponents
from chanest.covariances.lag_layout import LagLayout
from chanest.covariances.lags import BeamView, LagCovariance
from chanest.estimators.gated_lmmse import GatedLMMSE
from chanest.estimators.gmm import GMM
from chanest.fit import Fit
from chanest.networks.gate import Gate
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.scenario import Scenario
from vlista_core.estimate import Measurement
from vlista_core.linops import DenseMap, LinearMap
from vlista_core.metrics import nmse_db


@functools.cache
def small_problem(chains: int = 0, pattern: str = "omni", dual: bool = False) -> ChannelProblem:
    sent, received = ("cross", "VH") if dual else ("V", "V")
    return ChannelProblem(
        Scenario.model_validate(
            {
                "name": f"small-{chains}",
                "bs": {"rows": 2, "columns": 4, "yaw_spread": 60.0, "pattern": pattern, "polarization": sent},
                "ue": {"rows": 2, "columns": 2, "yaw": 180.0, "yaw_spread": 180.0, "polarization": received},
                "frontend": {"pilots": 6, "bits": 2, "chains": chains},
                "data": {"train": 2000},
            }
        )
    )


def _batch(chains: int = 0, dual: bool = False) -> ChannelBatch:
    return small_problem(chains, dual=dual).sample(5, seed=3, split="validation", snr_db=10.0)


def _setting(chains: int = 0, dual: bool = False) -> tuple[LagLayout, Tensor, ChannelBatch]:
    problem, batch = small_problem(chains, dual=dual), _batch(chains, dual)
    layout = LagLayout(*problem.arrays)
    assert batch.rays is not None
    return layout, layout.of_rays(problem.source, batch.rays), batch


def test_the_matrix_of_a_table_is_a_covariance_that_depends_on_distances_alone() -> None:
    layout, table, _ = _setting()
    matrix = layout.matrix(table)
    torch.testing.assert_close(matrix, matrix.mH, rtol=0, atol=1e-6)
    assert float(torch.linalg.eigvalsh(matrix).min()) > -1e-4
    grid = matrix.reshape(-1, 4, 2, 2, 2, 4, 2, 2, 2)
    torch.testing.assert_close(grid[:, 1:, 1:, 1:, 1:, 1:, 1:, 1:, 1:], grid[:, :-1, :-1, :-1, :-1, :-1, :-1, :-1, :-1])
    torch.testing.assert_close(layout.of_matrix(matrix), table)
    assert int(layout.multiplicity.sum()) == 32 * 32


def test_the_matrix_of_a_table_of_two_polarisations_depends_on_distances_and_polarisations_alone() -> None:
    layout, table, _ = _setting(dual=True)
    matrix = layout.matrix(table)
    torch.testing.assert_close(matrix, matrix.mH, rtol=0, atol=1e-6)
    assert float(torch.linalg.eigvalsh(matrix).min()) > -1e-4
    ends = matrix.reshape(-1, 2, 4, 2, 2, 2, 2, 2, 4, 2, 2, 2, 2).permute(0, 1, 4, 7, 10, 2, 3, 5, 6, 8, 9, 11, 12)
    grid = ends.flatten(0, 4)
    torch.testing.assert_close(grid[:, 1:, 1:, 1:, 1:, 1:, 1:, 1:, 1:], grid[:, :-1, :-1, :-1, :-1, :-1, :-1, :-1, :-1])
    torch.testing.assert_close(layout.of_matrix(matrix), table)
    assert int(layout.multiplicity.sum()) == (4 * 32) ** 2
    held = matrix.diagonal(dim1=1, dim2=2).real
    torch.testing.assert_close(LagCovariance(table, layout).variances(), held)


@pytest.mark.parametrize("dual", [False, True])
def test_the_covariance_of_the_rays_is_that_of_the_channels(dual: bool) -> None:
    fixed = small_problem(dual=dual).scenario.model_dump()
    fixed["bs"]["yaw_spread"] = fixed["ue"]["yaw_spread"] = 0.0
    problem = ChannelProblem(Scenario.model_validate(fixed))
    layout = LagLayout(*problem.arrays)
    channels = problem.channels(12_000 if dual else 4000, seed=0, split="train")
    sampled = channels.mT @ channels.conj() / len(channels)
    rays = problem.source.rays(range(600 if dual else 200), seed=1, split="train")
    model = layout.matrix(layout.of_rays(problem.source, rays)).mean(0)
    assert float((model - sampled).norm() / sampled.norm()) < 0.05


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize("chains", [0, 2])
def test_what_the_front_end_sees_is_exact_without_forming_the_covariance(chains: int, dual: bool) -> None:
    layout, table, batch = _setting(chains, dual)
    dense = batch.phi.materialize()
    whole, covariance = layout.matrix(table), LagCovariance(table, layout)
    maps: tuple[LinearMap, ...] = (batch.phi, DenseMap(dense))
    for phi in maps:
        torch.testing.assert_close(covariance.seen(phi), dense @ whole @ dense.mH, rtol=1e-4, atol=1e-4)
    expected = (whole @ batch.signal[..., None])[..., 0]
    torch.testing.assert_close(covariance.apply(batch.signal), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize("chains", [0, 2])
def test_pulling_back_is_the_adjoint_of_seeing(chains: int, dual: bool) -> None:
    layout, table, batch = _setting(chains, dual)
    dense = batch.phi.materialize()
    m = dense.shape[1]
    matrix = torch.randn(5, m, m, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    matrix = matrix + matrix.mH
    expected = ((dense @ layout.matrix(table) @ dense.mH) * matrix.mT).sum(dim=(1, 2)).real
    maps: tuple[LinearMap, ...] = (batch.phi, DenseMap(dense))
    for phi in maps:
        sums = BeamView(layout, phi).pulled_back(matrix)
        torch.testing.assert_close(
            (table * sums.conj() * layout.sides).sum(dim=(1, 2)).real, expected, rtol=1e-4, atol=1e-3
        )


@functools.cache
def _codebook() -> CovarianceCodebook:
    problem = small_problem()
    book = CovarianceCodebook(LagLayout(*problem.arrays), 16)
    book.fit(problem, 1000, Fit())
    return book


def test_members_and_their_mixtures_are_covariances_and_scores_are_traces() -> None:
    book = _codebook()
    weights = torch.eye(16)
    mixed = torch.full((1, 16), 1 / 16)
    for covariance in (book.mixture(weights), book.mixture(mixed), book.ensemble()):
        assert float(torch.linalg.eigvalsh(covariance.materialize()).min()) > 1e-3
    layout, _, batch = _setting()
    matrix = batch.y[:, :, None] * batch.y[:, None, :].conj()
    scores = book.scores(BeamView(layout, batch.phi).pulled_back(matrix))
    seen = batch.phi.adjoint(batch.y)
    traces = torch.einsum("bi,kij,bj->bk", seen.conj(), book.mixture(weights).materialize(), seen).real
    torch.testing.assert_close(scores, traces - FLOOR * seen.abs().square().sum(1)[:, None], rtol=1e-3, atol=1e-3)


def test_the_codebook_is_near_the_covariances_that_occur() -> None:
    book, problem = _codebook(), small_problem()
    rays = problem.source.rays(range(100), seed=5, split="validation")
    table = book.layout.of_rays(problem.source, rays)
    nearest = book.closeness(table).argmax(1)
    found = book.member(nearest).materialize()
    truth = book.layout.matrix(table)
    ensemble = book.ensemble().materialize()
    assert float((found - truth).norm()) < 0.7 * float((ensemble - truth).norm())


@pytest.mark.parametrize("structure", ["toeplitz", "kronecker"])
@pytest.mark.parametrize("chains", [0, 2])
def test_a_mixture_of_one_component_is_the_lmmse_estimate(structure: str, chains: int) -> None:
    problem, batch = small_problem(chains), _batch(chains)
    model = GMM(*problem.arrays, structure=structure, components=1)  # type: ignore[arg-type]
    channels = problem.channels(500, seed=0, split="train")
    model.components.estimate(0, channels)
    expected = _lmmse(batch, model.components.covariances().materialize()[0])
    got = model.estimate(batch.y, batch.phi, batch.noise_var).signal
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


def test_the_log_density_of_a_component_is_that_of_a_gaussian_with_the_assumed_noise() -> None:
    problem = small_problem()
    channels = problem.channels(500, seed=0, split="train")
    components = LagComponents(*problem.arrays, 1)
    components.estimate(0, channels)
    covariance = components.covariances().materialize()[0] + ASSUMED_NOISE * torch.eye(32)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
    distance = torch.einsum("bi,ij,bj->b", channels[:3].conj(), inverse, channels[:3]).real
    density = components.log_density(0, channels[:3])
    torch.testing.assert_close(density - density[0], distance[0] - distance, rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(density, -distance - torch.logdet(covariance).real, rtol=1e-3, atol=1e-2)


def _ensemble_estimate(batch: ChannelBatch) -> Tensor:
    problem = small_problem()
    layout = LagLayout(*problem.arrays)
    channels = problem.channels(2000, seed=0, split="train")
    return _lmmse(batch, layout.matrix(layout.of_matrix((channels.mT @ channels.conj() / 2000)[None]))[0])


def _lmmse(batch: ChannelBatch, covariance: Tensor) -> Tensor:
    """RΦᴴ(ΦRΦᴴ + σ²I)⁻¹y by dense matrices."""
    dense = batch.phi.materialize()
    return (covariance @ dense.mH @ _whitened(batch, covariance)[..., None])[..., 0]


def _whitened(batch: ChannelBatch, covariance: Tensor) -> Tensor:
    """(ΦRΦᴴ + σ²I)⁻¹y by dense matrices: [batch, m]."""
    dense = batch.phi.materialize()
    total = dense @ covariance @ dense.mH + batch.noise_var[:, None, None] * torch.eye(dense.shape[1])
    solved: Tensor = torch.cholesky_solve(batch.y[..., None], torch.linalg.cholesky(total))
    return solved[..., 0]


def test_a_mixture_of_eight_beats_the_ensemble_covariance() -> None:
    problem = small_problem()
    model = GMM(*problem.arrays, structure="toeplitz", components=8)
    facts = model.fit(problem, Fit(steps=20))
    assert facts["validation_nmse_db"]
    batch = problem.sample(400, seed=1, snr_db=15.0)
    ours = nmse_db(model.estimate(batch.y, batch.phi, batch.noise_var).signal, batch.signal)
    assert ours < nmse_db(_ensemble_estimate(batch), batch.signal) - 0.3


class _Proposing(Gate):
    """A gate that was told how to weigh the members."""

    def __init__(self, weights: Tensor) -> None:
        nn.Module.__init__(self)
        self.weights = weights

    def forward(self, features: Tensor, generator: torch.Generator | None = None) -> Tensor:
        assert bool(torch.isfinite(features).all())
        return self.weights.log()


def _gated(verified: int) -> GatedLMMSE:
    model = GatedLMMSE(*small_problem().arrays, codes=16, hidden=8, verified=verified)
    model.codebook = _codebook()
    return model


def test_the_right_member_comes_near_the_genie_and_the_mean_of_all_is_the_ensemble() -> None:
    problem, model = small_problem(), _gated(0)
    batch = problem.sample(400, seed=1, snr_db=15.0)
    assert batch.rays is not None
    ensemble = nmse_db(_ensemble_estimate(batch), batch.signal)
    model.gate = _Proposing(model.codebook.prior.expand(400, -1))
    assert nmse_db(model.estimate(batch.y, batch.phi, batch.noise_var).signal, batch.signal) == pytest.approx(
        ensemble, abs=0.1
    )
    nearest = model.codebook.closeness(model.layout.of_rays(problem.source, batch.rays)).argmax(1)
    model.gate = _Proposing(0.999 * torch.eye(16)[nearest] + 1e-3 / 16)
    assert nmse_db(model.estimate(batch.y, batch.phi, batch.noise_var).signal, batch.signal) < ensemble - 0.5


@pytest.mark.parametrize("chains", [0, 2])
def test_verified_members_share_their_weight_as_bayes_has_it(chains: int) -> None:
    model, batch = _gated(3), _batch(chains)
    proposed = torch.linspace(1.0, 2.0, 16).softmax(0).expand(5, -1)
    model.gate = _Proposing(proposed)
    weights = model.log_weights(Measurement(batch.y, batch.phi, batch.noise_var)).exp().double()
    torch.testing.assert_close(weights[:, :13], proposed[:, :13].double())
    dense = batch.phi.materialize().to(torch.complex128)
    members = model.codebook.mixture(torch.eye(16)).materialize().to(torch.complex128)
    covariance = torch.einsum("bmi,kij,bnj->bkmn", dense, members, dense.conj())
    covariance = covariance + batch.noise_var.double()[:, None, None, None] * torch.eye(dense.shape[1])
    y = batch.y.to(torch.complex128)[:, None].expand(-1, 16, -1)
    factor = torch.linalg.cholesky(covariance)
    white = torch.linalg.solve_triangular(factor, y[..., None], upper=False)
    density = -white.abs().square().sum((2, 3)) - 2 * factor.diagonal(dim1=2, dim2=3).real.log().sum(2)
    posterior = (density + model.codebook.prior.double().log())[:, 13:].softmax(1)
    torch.testing.assert_close(weights[:, 13:], posterior * proposed[:, 13:].sum(1, keepdim=True), rtol=1e-2, atol=1e-4)


def test_the_gate_sees_powers_of_the_members() -> None:
    model, batch = _gated(0), _batch()
    features = model.seen_by_gate(Measurement(batch.y, batch.phi, batch.noise_var))
    members = model.codebook.mixture(torch.eye(16)).materialize()
    members.diagonal(dim1=1, dim2=2).sub_(FLOOR)
    pulled = batch.phi.adjoint(_whitened(batch, model.codebook.ensemble().materialize()[0]))
    for place, vector in enumerate((batch.phi.adjoint(batch.y), pulled)):
        power = torch.einsum("bi,kij,bj->bk", vector.conj(), members, vector).real
        got = features[:, 16 * place : 16 * (place + 1)].exp()
        torch.testing.assert_close(got, power, rtol=1e-3, atol=1e-3 * float(power.max()))
    scalars = torch.stack([batch.noise_var, batch.y.abs().square().mean(1)], 1)
    torch.testing.assert_close(features[:, 32:].exp(), scalars)


def test_a_wideband_scenario_is_refused_in_one_sentence() -> None:
    wide = small_problem().scenario.model_dump()
    wide["channel"]["subcarriers"] = 8
    wide["frontend"]["pattern"] = {"kind": "comb", "spacing": 2}  # measured alike, they would be taken in delay modes
    problem = ChannelProblem(Scenario.model_validate(wide))
    for kind in (GMM, GatedLMMSE):
        with pytest.raises(ValueError, match="one subcarrier"):
            kind.check(problem)
