"""The front end: whitening, least squares with unitary beams, beams of each kind, noise that is what it says."""

from __future__ import annotations

import math

import pytest
import torch

import chanest
from chanest.arrays import ula, upa
from chanest.dictionaries import angular_dictionary
from chanest.frontend import BeamformingMap
from chanest.pilots import draw_beams, draw_combiners
from vlista_core.linops import DenseMap


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _combiners(batch: int, pilots: int, chains: int) -> torch.Tensor:
    generator = _generator(3)
    draws = [draw_combiners("quantised", upa(2, 4), pilots, chains, bits=2, generator=generator) for _ in range(batch)]
    return torch.stack(draws)


def test_whitened_noise_is_white_and_coloured_noise_is_as_exposed() -> None:
    """Sample covariance over 4000 draws of 2 pilots of 3 chains: each entry within 6 standard errors (1/√4000)."""
    combiner = _combiners(1, 2, 3)
    draws = 4000
    noise = torch.randn(1, draws, 2 * 8, dtype=torch.complex64, generator=_generator(4))
    beams = torch.ones(1, 4, 2, dtype=torch.complex64)
    for whiten in (True, False):
        phi = BeamformingMap.of(beams, combiner, whiten=whiten)
        out = torch.stack([phi.combine(noise[:, i])[0] for i in range(draws)])
        sampled = (out.mT @ out.conj()) / draws
        expected = torch.block_diag(*phi.noise_covariance()[0])
        assert float((sampled - expected).abs().max()) < 6 / math.sqrt(draws)
        raw = torch.block_diag(*(combiner[0].mH @ combiner[0]))
        known = torch.eye(6, dtype=raw.dtype) if whiten else raw
        torch.testing.assert_close(expected, known, atol=1e-6, rtol=1e-5)
    assert float((raw - torch.eye(6)).abs().max()) > 0.1


def test_whitening_keeps_the_information() -> None:
    """The Fisher information Φᴴ C⁻¹ Φ is the same before and after."""
    combiner = _combiners(2, 5, 3).to(torch.complex128)
    beams = torch.randn(2, 4, 5, dtype=torch.complex128, generator=_generator())
    coloured = BeamformingMap.of(beams, combiner, whiten=False)
    white = BeamformingMap.of(beams, combiner).materialize()
    covariance = torch.stack([torch.block_diag(*blocks) for blocks in coloured.noise_covariance()])
    matrix = coloured.materialize()
    weighted = torch.cholesky_solve(matrix, torch.linalg.cholesky(covariance))
    torch.testing.assert_close(white.mH @ white, matrix.mH @ weighted)


@pytest.mark.parametrize("snr_db", [0.0, 20.0])
@pytest.mark.parametrize("digital", [True, False], ids=["digital", "unitary combiner"])
def test_least_squares_with_unitary_beams_has_nmse_of_minus_snr(snr_db: float, digital: bool) -> None:
    """256 channels of 128 entries: 33,000 noise terms, whose mean has an error of 0.024 dB."""
    batch, transmit, receive = 256, 16, 8
    unitary = torch.linalg.qr(torch.randn(batch, transmit, transmit, dtype=torch.complex128, generator=_generator())).Q
    combiner = None
    if not digital:
        square = torch.randn(batch, transmit, receive, receive, dtype=torch.complex128, generator=_generator(1))
        combiner = torch.linalg.qr(square).Q
    phi = BeamformingMap.of(unitary, combiner, antennas=receive)
    h = torch.randn(batch, transmit * receive, dtype=torch.complex128, generator=_generator(2))
    noise = torch.randn(batch, transmit * receive, dtype=torch.complex128, generator=_generator(3))
    y = phi.apply(h) + phi.combine(10 ** (-snr_db / 20) * noise)
    error = (phi.adjoint(y) - h).abs().square().sum() / h.abs().square().sum()
    assert 10 * math.log10(float(error)) == pytest.approx(-snr_db, abs=0.1)


@pytest.mark.parametrize("kind", ["phases", "quantised", "dft", "gaussian"])
def test_beams_have_unit_norm(kind: str) -> None:
    beams = draw_beams(kind, upa(4, 4, polarization="VH"), 20, bits=2, generator=_generator())  # type: ignore[arg-type]
    torch.testing.assert_close(torch.linalg.vector_norm(beams, dim=0), torch.ones(20))


def test_quantised_shifters_use_their_phases_and_no_others() -> None:
    beams = draw_beams("quantised", ula(64), 50, bits=2, generator=_generator())
    steps = torch.angle(beams) / (math.pi / 2)
    torch.testing.assert_close(steps, steps.round(), atol=1e-5, rtol=0)
    assert set((steps.round() % 4).flatten().tolist()) == {0.0, 1.0, 2.0, 3.0}


def test_a_full_dft_codebook_is_unitary() -> None:
    beams = draw_beams("dft", upa(2, 4, polarization="cross"), 16, bits=2, generator=_generator())
    torch.testing.assert_close(beams.mH @ beams, torch.eye(16, dtype=beams.dtype), atol=1e-5, rtol=0)


def test_combiners_of_a_small_array_are_never_singular() -> None:
    """Two 1-bit columns of two antennas coincide (up to sign) half the time; the draw must avoid it."""
    combiners = draw_combiners("quantised", ula(2), 500, 2, bits=1, generator=_generator())
    smallest = torch.linalg.svdvals(combiners)[:, -1].min()
    assert float(smallest) > 0.01


def test_bad_beams_are_refused_by_name() -> None:
    beams = torch.ones(2, 4, 3, dtype=torch.complex64)
    with pytest.raises(ValueError, match="antennas"):
        BeamformingMap.of(beams)
    with pytest.raises(ValueError, match="combiner"):
        BeamformingMap.of(beams, torch.ones(2, 4, 3, 1, dtype=torch.complex64))
    with pytest.raises(ValueError, match="more chains"):
        BeamformingMap.of(beams, torch.ones(2, 3, 2, 4, dtype=torch.complex64))
    with pytest.raises(ValueError, match="DFT codebook"):
        draw_beams("dft", ula(4), 5, bits=2, generator=_generator())


@pytest.mark.parametrize("name", ["cdl_c_upa64x4", "hybrid_64x16", "wideband_64x4"])
def test_column_norms_of_a_beamformed_grid_need_no_product(name: str) -> None:
    problem = chanest.ChannelProblem(chanest.load_scenario(name))
    product = problem.sample(2, seed=1, snr_db=10.0).phi @ problem.dictionary(oversampling=1.5)
    norms = product.column_norms()
    chosen = torch.randint(norms.shape[1], (1, 50), generator=torch.Generator().manual_seed(0))
    direct = torch.linalg.vector_norm(product.columns(chosen), dim=1)
    torch.testing.assert_close(norms[:, chosen[0]], direct, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("chains", [0, 2])
def test_what_dft_beams_do_not_see_of_their_own_grid_has_a_norm_of_zero(chains: int) -> None:
    tx, rx, pilots = upa(4, 4), ula(4), 10
    beams = torch.stack([draw_beams("dft", tx, pilots, bits=2, generator=_generator(seed)) for seed in range(3)])
    drawn = torch.randn(3, pilots, rx.ports, chains, dtype=torch.complex64, generator=_generator(9))
    combiner = drawn if chains else None
    phi = BeamformingMap.of(beams, combiner, antennas=rx.ports)
    psi = angular_dictionary(rx, tx)
    for product in (phi @ psi, DenseMap((phi @ psi).materialize())):
        norms = product.column_norms().reshape(3, tx.ports, rx.ports)
        assert (norms == 0).all(2).sum(1).tolist() == [tx.ports - pilots] * 3
        assert float(norms[norms > 0].min()) > 0.01
