"""Cluster LMMSE: its codebooks are covariances of clusters, its gate sees what it says, its last step is joint and exact."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from chanest.arrays import Array
from chanest.bounds.genie import GenieAngles
from chanest.channels.cdl import CdlModel
from chanest.covariances.lag_layout import lag_between
from chanest.covariances.modes import ModesMap, in_modes
from chanest.covariances.parts import Parts, SideCodebook
from chanest.estimators.cluster_lmmse import ClusterLMMSE
from chanest.estimators.lmmse import LMMSE
from chanest.fit import Fit
from chanest.frontend import BeamformingMap
from chanest.problem import ChannelProblem
from chanest.scenario import ArraySection, CdlSection, DataSection, FrontendSection, Scenario
from vlista_core.estimate import Measurement
from vlista_core.gaussian import condition
from vlista_core.linops import DenseMap
from vlista_core.metrics import nmse_db


def _problem(subcarriers: int = 8, chains: int = 0, models: tuple[CdlModel, ...] = ("C",)) -> ChannelProblem:
    return ChannelProblem(
        Scenario(
            name="wide",
            bs=ArraySection(rows=2, columns=4, yaw_spread=60.0),
            ue=ArraySection(rows=1, columns=2, yaw=180.0, yaw_spread=180.0),
            channel=CdlSection(models=models, subcarriers=subcarriers, subcarrier_spacing=480e3),
            frontend=FrontendSection(pilots=6, chains=chains),
            data=DataSection(train=400, validation=64, test=64),
        )
    )


@cache
def _fitted() -> ClusterLMMSE:
    estimator = ClusterLMMSE.build(_problem())
    estimator.fit(_problem(), Fit(steps=60))
    return estimator.eval()


@pytest.mark.parametrize("models", [("C",), ("D",)])
def test_parts_are_the_clusters_that_the_genie_knows(models: tuple[CdlModel, ...]) -> None:
    """Averaged over the coupling of rays, with a line of sight and without."""
    problem = _problem(models=models)
    modes = torch.eye(problem.subcarriers, dtype=torch.complex64)
    rays = problem.source.rays(range(40), seed=1)
    fixed = replace(
        rays,
        tx_orientation=rays.tx_orientation[:1].expand(40, -1),
        rx_orientation=rays.rx_orientation[:1].expand(40, -1),
    )
    known = GenieAngles(problem).prior(fixed).materialize()[0]
    estimator = ClusterLMMSE(*problem.arrays, subcarriers=8, modes=8, parts=1, rank=1)
    parts = Parts.of_rays(problem.source, fixed, modes)
    total = torch.zeros_like(known)
    for side, tables in ((estimator.tx, parts.tx), (estimator.rx, parts.rx)):
        assert torch.allclose(tables[..., side.kept - 1], torch.ones(()).to(tables.dtype), atol=1e-5)
    for one in range(40):
        tx, rx = (
            _matrix(side.array, tables[one]) for side, tables in ((estimator.tx, parts.tx), (estimator.rx, parts.rx))
        )
        delay = parts.columns[one, :, :, None] * parts.columns[one].conj()[:, None, :]
        terms = torch.einsum("pde,pij,prs->direjs", delay, tx, rx)
        total += terms.reshape(total.shape).to(total.dtype) / 40
    assert float(torch.linalg.matrix_norm(total - known) / torch.linalg.matrix_norm(known)) < 0.05


def _matrix(array: Array, tables: Tensor) -> Tensor:
    return tables[:, lag_between(array)]


def test_the_codebook_finds_the_members_that_samples_are_near() -> None:
    estimator, problem = _fitted(), _problem()
    parts = Parts.of_rays(problem.source, problem.rays(range(50), seed=0, split="validation"), estimator.modes)
    for side, tables in ((estimator.tx, parts.tx), (estimator.rx, parts.rx)):
        near = side.closeness(tables)
        assert bool((near <= 1e-4).all())
        assert float(near.amax(1).mean()) > -0.1
        itself = side.closeness(side.tables())
        assert torch.equal(itself.argmax(1), torch.arange(len(itself)))
        assert float(side.prior.sum()) == pytest.approx(1.0)


def test_a_codebook_in_a_file_is_exact_to_a_millionth() -> None:
    """Whole numbers of 20 bits; half precision would make eigenvalues of -1e-3."""
    side = SideCodebook(_problem().arrays[1], parts=3, size=5)
    members = 2 * torch.rand(side.members.shape, generator=torch.Generator().manual_seed(0)) - 1
    members[0, 0, 0] = torch.tensor([1.0, -1.0])
    side.take(members)
    assert float((side.members - members).abs().max()) < 1.1e-6
    again = SideCodebook(side.array, parts=3, size=5)
    again.load_state_dict(side.state_dict())
    assert torch.equal(again.members, side.members)
    assert not {"members"} & side.state_dict().keys()


def test_the_gate_sees_the_power_of_the_gradient_on_every_member() -> None:
    """Features against tr((D_p ⊗ T_kp ⊗ S̄_p) vvᴴ), summed over the parts, with matrices."""
    estimator, problem = _fitted(), _problem()
    batch = problem.sample(3, seed=1, snr_db=10.0)
    inside = in_modes(Measurement(batch.y, batch.phi, batch.noise_var), estimator.modes)
    seen = inside.phi.adjoint(inside.y)
    count = len(estimator.tx.prior)
    features = estimator.seen_by_gate(inside).exp()
    ends = {"tx": estimator.tx, "rx": estimator.rx}
    for k in (0, count // 2, len(estimator.rx.prior) - 1):
        for name in ends:
            one = torch.zeros(1, len(ends[name].prior))
            one[0, k] = 1.0
            weights = {end: one if end == name else side.prior[None] for end, side in ends.items()}
            member = estimator.clusters(weights["tx"], weights["rx"]).materialize()
            power = (seen.conj() * (member @ seen[..., None])[..., 0]).sum(1).real
            assert torch.allclose(features[:, k + (count if name == "rx" else 0)], power, rtol=1e-3)


@pytest.mark.parametrize("chains", [0, 1])
def test_the_last_step_is_joint_and_exact(chains: int) -> None:
    """Against the textbook formula with the whole matrices in double precision, mean and variance and probes."""
    estimator, problem = _fitted(), _problem(chains=chains)
    batch = problem.sample(3, seed=1, snr_db=15.0)
    measured = Measurement(batch.y, batch.phi, batch.noise_var)
    found = estimator.estimate(batch.y, batch.phi, batch.noise_var)
    prior = estimator.prior(measured).materialize().to(torch.complex128)
    matrix = batch.phi.materialize().to(torch.complex128)
    noise = batch.noise_var[:, None, None].double() * torch.eye(matrix.shape[1])
    seen = matrix @ prior @ matrix.mH + noise
    gain = prior @ matrix.mH @ torch.cholesky_inverse(torch.linalg.cholesky(seen))
    mean = (gain @ batch.y.to(torch.complex128)[..., None])[..., 0]
    assert float((found.signal - mean).abs().max().detach()) < 2e-3
    covariance = prior - gain @ matrix @ prior
    variance = covariance.diagonal(dim1=1, dim2=2).real
    assert found.variance is not None
    assert torch.allclose(found.variance.double(), variance.maximum(0.01 * variance.mean(1, keepdim=True)), rtol=0.02)
    rows = torch.randn(3, 4, problem.signal_length, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    probed = found.variance_through(DenseMap(rows))
    wide = rows.to(torch.complex128)
    assert probed is not None
    assert torch.allclose(probed.double(), (wide @ covariance @ wide.mH).diagonal(dim1=1, dim2=2).real, rtol=0.02)


def test_joint_beats_apart_and_the_nearest_members_beat_the_ensemble() -> None:
    """What the gate is to find, from the rays: the members of both ends that are nearest to the sample."""
    estimator, problem = _fitted(), _problem()
    lmmse = LMMSE.build(problem)
    lmmse.fit(problem, Fit(steps=4))
    back = ModesMap(estimator.modes, problem.signal_length // problem.subcarriers)
    for snr_db in (5.0, 15.0):
        batch = problem.sample(48, seed=2, snr_db=snr_db)
        assert batch.rays is not None
        parts = Parts.of_rays(problem.source, batch.rays, estimator.modes)
        pairs = ((estimator.tx, parts.tx), (estimator.rx, parts.rx))
        nearest = [one_hot(side.closeness(tables).argmax(1), len(side.prior)).float() for side, tables in pairs]
        inside = in_modes(Measurement(batch.y, batch.phi, batch.noise_var), estimator.modes)

        def error(transmit: Tensor, receive: Tensor, inside: Measurement = inside, h: Tensor = batch.signal) -> float:
            return nmse_db(back.apply(condition(estimator.clusters(transmit, receive), inside).mean), h)

        apart = nmse_db(lmmse.estimate(batch.y, batch.phi, batch.noise_var).signal, batch.signal)
        ensemble = error(estimator.tx.prior[None], estimator.rx.prior[None])
        assert error(nearest[0], nearest[1]) < ensemble - 1.0
        assert ensemble < apart - 0.1


def test_a_dense_map_of_the_same_beams_gives_the_same() -> None:
    """Through the matrix of Φ nothing is known of subcarriers, so that nothing is projected."""
    estimator = _fitted()
    batch = _problem().sample(2, seed=4, snr_db=10.0)
    assert isinstance(batch.phi, BeamformingMap)
    plain = estimator.estimate(batch.y, batch.phi, batch.noise_var).signal
    dense = estimator.estimate(batch.y, batch.phi.materialize(), batch.noise_var).signal
    assert torch.allclose(plain, dense, atol=2e-3)


def test_fits_of_one_seed_are_alike() -> None:
    problem = _problem()
    first, second = ClusterLMMSE.build(problem), ClusterLMMSE.build(problem)
    for estimator in (first, second):
        estimator.fit(problem, Fit(steps=8))
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
