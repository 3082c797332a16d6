"""The spatial channel model: its covariances are those of its definition, of its channels and of its rays."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from chanest.arrays import ula, upa
from chanest.bounds import get_bound
from chanest.channels.rays import Rays
from chanest.channels.scm import ScmSource, laplacian_covariance
from chanest.covariances.kronecker import KroneckerCovariance, KroneckerPosterior
from chanest.covariances.rays import cluster_products
from chanest.estimators.product_lmmse import ProductLMMSE
from chanest.fit import Fit
from chanest.frontend import BeamformingMap
from chanest.problem import ChannelProblem
from chanest.scenario import Scenario, load_scenario
from chanest.weights import provenance, uncalibrated
from chanest.weights.training import save_estimator, train_estimator
from vlista_core.estimate import Measurement
from vlista_core.gaussian import DenseCovariance, condition

SOURCE = ScmSource(ula(8), ula(4), direction="uplink")


@pytest.mark.parametrize("degrees", [2.0, 35.0])
def test_the_series_is_the_integral_over_the_wrapped_laplacian(degrees: float) -> None:
    """By a sum over nine turns of the circle, finely enough for 1e-4."""
    spread, centre = math.radians(degrees), torch.tensor([[1.2, -0.3]], dtype=torch.float64)
    gains = torch.tensor([[0.7, 0.3]], dtype=torch.float64)
    angle = torch.linspace(-9 * math.pi, 9 * math.pi, 200_001, dtype=torch.float64)
    density = (gains.mT * torch.exp(-math.sqrt(2) * (angle - centre.mT).abs() / spread)).sum(0)
    steering = torch.exp(1j * math.pi * torch.arange(16)[:, None] * torch.sin(angle))
    expected = steering @ (density / density.sum()).to(steering.dtype)
    found = laplacian_covariance(ula(16), centre, gains, spread)[0]
    torch.testing.assert_close(found[:, 0], expected, atol=1e-4, rtol=0.0)
    torch.testing.assert_close(found, found.mH)
    torch.testing.assert_close(found.diagonal(), torch.ones(16, dtype=found.dtype))


def _distance(matrix: Tensor, reference: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix - reference) / torch.linalg.matrix_norm(reference))


@pytest.mark.parametrize("direction", ["uplink", "downlink"])
def test_channels_of_one_set_of_angles_have_the_kronecker_product(
    direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound's R, in the order of vec(H), is the covariance of 4,000 channels with the same angles."""
    source = replace(SOURCE, direction=direction)  # type: ignore[arg-type]
    one = source.rays(range(1), seed=3)
    same = Rays(*(tensor.expand(4000, *tensor.shape[1:]) for tensor in one.tensors()))
    monkeypatch.setattr(ScmSource, "rays", lambda *_, **__: same)
    h, _ = source.channels(range(4000), seed=0)
    signal = h.mT.reshape(4000, -1).to(torch.complex128)
    rx, tx = source.covariances(one)
    assert rx.shape[1:] == (source.rx.ports,) * 2
    known = KroneckerCovariance(tx[:, None], rx[:, None]).materialize()[0]
    assert _distance(signal.mT @ signal.conj() / 4000, known) < 0.1


def test_rays_have_the_covariance_and_gains_add_up_to_one() -> None:
    """What learns from rays averages outer products over them: within 3 % of the exact covariance."""
    rays = SOURCE.rays(range(16), seed=1)
    torch.testing.assert_close(rays.powers.sum(1), torch.ones(16))
    angles = rays.aoa.mean(2)
    assert float(angles.abs().max()) <= math.pi / 2 + 1e-5

    def outer(steering: Tensor) -> Tensor:
        """Means of aaᴴ: [batch, clusters, N²]."""
        return torch.einsum("bcmi,bcmj->bcij", steering, steering.conj()).flatten(2) / steering.shape[2]

    found = cluster_products(SOURCE, rays, outer, outer).to(torch.complex128)
    rx, tx = SOURCE.covariances(rays)
    expected = rx.flatten(1)[:, :, None] * tx.flatten(1)[:, None, :]
    assert all(_distance(mine, known) < 0.03 for mine, known in zip(found, expected, strict=True))


def test_identity_beams_measure_the_channel_itself() -> None:
    problem = ChannelProblem(load_scenario("scm_64x16"))
    batch = problem.sample(2, seed=0, snr_db=200.0)
    torch.testing.assert_close(batch.y, batch.signal, atol=1e-6, rtol=1e-5)
    assert problem.with_pilots(40).measurements == problem.signal_length
    content = problem.scenario.model_dump()
    content["frontend"]["pilots"] = 17
    with pytest.raises(ValueError, match=r"frontend\.pilots must be at most 16, the size of the array, got 17"):
        Scenario.model_validate(content)


def test_eigen_decompositions_of_the_factors_give_the_posterior_of_the_whole() -> None:
    """24 beams to 32 antennas at a digital receiver: mean, variance, evidence and precision against the dense prior."""
    generator = torch.Generator().manual_seed(0)
    source = ScmSource(ula(32), ula(24), direction="uplink")
    rx, tx = source.covariances(source.rays(range(3), seed=0))
    prior = KroneckerCovariance(tx[:, None], rx[:, None])
    transmit = torch.randn(3, 24, 24, dtype=torch.complex128, generator=generator)
    phi = BeamformingMap.of(transmit, antennas=32)
    y = torch.randn(3, 768, dtype=torch.complex128, generator=generator)
    measured = Measurement(y, phi, torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64))
    found, known = condition(prior, measured), condition(DenseCovariance(prior.materialize()), measured)
    assert isinstance(found, KroneckerPosterior)
    assert not isinstance(known, KroneckerPosterior)
    for name in ("whitened", "mean", "variance", "log_evidence", "precision"):
        torch.testing.assert_close(getattr(found, name), getattr(known, name), rtol=1e-6, atol=1e-8)


def test_the_genie_is_the_best_and_knows_its_own_sample() -> None:
    problem = ChannelProblem(load_scenario("scm_64x1"))
    batch = problem.sample(64, seed=1, snr_db=10.0)
    genie = get_bound("genie-covariance", problem)
    assert batch.rays is not None
    others = replace(batch, rays=batch.rays.select(torch.arange(64).roll(1)))
    assert genie.nmse_db(batch) < genie.nmse_db(others) - 5.0


def test_other_arrays_and_orientations_are_refused() -> None:
    with pytest.raises(ValueError, match="bs must have one row"):
        ScmSource(upa(2, 2), ula(2))
    content = load_scenario("scm_64x1").model_dump()
    content["ue"]["yaw"] = 30.0
    with pytest.raises(ValueError, match=r"ue\.yaw must be 0 for scm, whose angles are those of the array, got 30"):
        Scenario.model_validate(content)


def test_training_goes_on_from_the_weights_of_a_file(tmp_path: Path) -> None:
    """The first step of a rate that rises moves a weight by 2e-5 at most, half precision by 5e-4 of it."""
    content = load_scenario("scm_64x16").model_dump()
    content["bs"]["columns"], content["ue"]["columns"], content["frontend"]["pilots"] = 8, 4, 4
    content["data"]["train"] = 200
    problem = ChannelProblem(Scenario.model_validate(content))
    former = ProductLMMSE.build(problem)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in former.parameters():
            weights.add_(0.05 * torch.randn(weights.shape, generator=generator))
    file = tmp_path / "former.safetensors"
    save_estimator(former, problem, file, facts={})
    trained = train_estimator("product-lmmse", problem, Fit(steps=1), folder=tmp_path / "own", start_from=file)
    now = uncalibrated("product-lmmse", problem, trained).state_dict()
    for name, value in former.state_dict().items():
        torch.testing.assert_close(now[name], value, atol=1e-4, rtol=1e-3)
    assert isinstance(provenance(trained)["started_from"], str)
    with pytest.raises(ValueError, match=r"^lmmse learns from nothing; weights to start from are for product-lmmse$"):
        train_estimator("lmmse", problem, Fit(steps=1), folder=tmp_path, start_from=file)
