"""Every channel estimator of the registry meets the estimator contract, on a scenario small enough for CI."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from chanest.bases.estimator import ChannelEstimator
from chanest.estimators import estimator_class, estimator_names
from chanest.fit import Fit
from chanest.frontend import BeamformingMap, GridMap
from chanest.pilots import Block, draw_beams
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.scenario import ArraySection, CdlSection, DataSection, FrontendSection, Scenario
from vlista_core import checkpoint
from vlista_core.draws import Split
from vlista_core.problems import Batch
from vlista_core.testing import ESTIMATOR_CHECKS, EstimatorCase

HALF_A_DECIBEL = 10**0.05
"""How much worse than an estimate of zero is still allowed."""
HARDLY_TRAINED = ("nalista",)
"""Twelve steps do not teach an LSTM what other beams than those of the scenario mean: only finite numbers are asked of it."""


@cache
def _problem() -> ChannelProblem:
    return ChannelProblem(
        Scenario(
            name="small",
            bs=ArraySection(rows=2, columns=4, yaw_spread=60.0),
            ue=ArraySection(rows=1, columns=2, yaw=180.0, yaw_spread=180.0),
            channel=CdlSection(models=("C",)),
            frontend=FrontendSection(pilots=6),
            data=DataSection(train=400, validation=64, test=64),
        )
    )


@cache
def _estimator(name: str) -> ChannelEstimator:
    """Built, and fitted for a moment where it is of no use otherwise; once a session."""
    estimator = estimator_class(name).build(_problem())
    if estimator.needs_fit:
        estimator.fit(_problem(), Fit(steps=12))
    return estimator.eval()


@cache
def _batch() -> ChannelBatch:
    return _problem().sample(6, seed=3, snr_db=20.0)


@pytest.mark.parametrize("check", ESTIMATOR_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", estimator_names())
def test_estimator_contract(name: str, check: Callable[[EstimatorCase, torch.dtype], None]) -> None:
    estimator = _estimator(name)
    case = EstimatorCase(
        name,
        lambda dtype, device: estimator.to(device) if device.type != "meta" else _on_meta(estimator),
        lambda dtype: _batch(),
    )
    check(case, torch.complex64)


def _on_meta(estimator: ChannelEstimator) -> ChannelEstimator:
    """A copy without values, so that the fitted one stays as it is."""
    return type(estimator).from_configuration(estimator.configuration()).to("meta").eval()


@pytest.mark.parametrize("name", estimator_names())
def test_unknown_noise_gives_a_finite_channel(name: str) -> None:
    batch = _batch()
    out = _estimator(name).estimate(batch.y, batch.phi, None)
    assert out.signal.shape == batch.signal.shape
    assert bool(torch.isfinite(out.signal).all())


@pytest.mark.parametrize("name", estimator_names())
def test_wrong_arrays_are_named(name: str) -> None:
    batch, phi = _batch(), _batch().phi.materialize()
    for noise_var in (batch.noise_var, None):
        with pytest.raises(ValueError, match="phi must have 16 columns"):
            _estimator(name).estimate(batch.y, phi[:, :, :-1].contiguous(), noise_var)


@pytest.mark.parametrize("name", estimator_names())
def test_nan_is_named_where_the_noise_is_unknown(name: str) -> None:
    y = _batch().y.clone()
    y[2, 1] = math.nan
    with pytest.raises(ValueError, match="y must be finite"):
        _estimator(name).estimate(y, _batch().phi, None)


@pytest.mark.parametrize("name", estimator_names())
def test_a_file_gives_the_same_bits(name: str, tmp_path: Path) -> None:
    batch, estimator = _batch(), _estimator(name)
    path = tmp_path / "weights.safetensors"
    checkpoint.save(estimator, path)
    loaded = checkpoint.load(path, expected=type(estimator))
    expected = estimator.estimate(batch.y, batch.phi, batch.noise_var)
    got = loaded.estimate(batch.y, batch.phi, batch.noise_var)
    assert torch.equal(got.signal, expected.signal)
    assert (got.variance is None) == (expected.variance is None)


@pytest.mark.parametrize("name", estimator_names())
def test_name_and_summary_are_those_of_the_registry(name: str) -> None:
    estimator = _estimator(name)
    assert estimator.name == name
    assert estimator.summary
    assert "\n" not in estimator.summary
    assert estimator.signal_length == 16


def _nmse(signal: Tensor, truth: Tensor) -> float:
    """As a ratio of sums; 1 is what an estimate of zero has."""
    assert bool(torch.isfinite(signal).all())
    return float((signal - truth).abs().double().square().sum() / truth.abs().double().square().sum())


def _through(transmit: Tensor, snr_db: float, count: int = 40) -> Batch:
    """Channels of the small scenario through these beams, the same for all: transmit: [N_t, T]."""
    problem = _problem()
    signal = problem.channels(count, seed=5, split="validation")
    phi = BeamformingMap.of(transmit.expand(count, -1, -1), antennas=problem.arrays[0].ports)
    noise_var = torch.full((count,), 10 ** (-snr_db / 10))
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(count, phi.shape[0], dtype=signal.dtype, generator=generator)
    return Batch(signal, phi.apply(signal) + noise_var.sqrt()[:, None] * noise, phi, noise_var)


def _beams(kind: str) -> Tensor:
    tx = _problem().arrays[1]
    generator = torch.Generator().manual_seed(2)
    some = draw_beams("phases", tx, 6, bits=2, generator=generator)
    codebook = draw_beams("dft", tx, tx.ports, bits=2, generator=generator)
    kinds = {
        "half of a DFT codebook": codebook[:, : tx.ports // 2],
        "a DFT codebook": codebook,
        "identity": torch.eye(tx.ports, dtype=some.dtype),
        "one beam repeated": some[:, :1].expand(-1, 6),
        "half of them zero": torch.where(torch.arange(6) % 2 == 0, some, 0.0),
        "all zero": torch.zeros_like(some),
    }
    return kinds[kind].contiguous()


_KINDS = ("half of a DFT codebook", "a DFT codebook", "identity", "one beam repeated", "half of them zero", "all zero")


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("name", estimator_names())
def test_no_beams_make_an_estimate_wild(name: str, kind: str) -> None:
    """At 10 dB. A pursuit that sees six numbers of sixteen unknowns may be wrong: within 3 dB of an estimate of zero."""
    batch = _through(_beams(kind), 10.0)
    out = _estimator(name).estimate(batch.y, batch.phi, batch.noise_var)
    found = _nmse(out.signal, batch.signal)
    assert name in HARDLY_TRAINED or found <= 2.0


@pytest.mark.parametrize("name", estimator_names())
def test_pilots_on_a_grid_are_estimated_as_the_flat_ones_that_they_are(name: str) -> None:
    """The same measurement through GridMap and BeamformingMap, to the rounding of single precision."""
    batch, estimator = _batch(), _estimator(name)
    assert isinstance(batch.phi, BeamformingMap)
    pilots = Block(tuple(range(batch.phi.pilots))).on(batch.phi.pilots, 1)
    grid = GridMap.of(pilots, batch.phi.transmit, antennas=batch.phi.antennas)
    flat = estimator.estimate(batch.y, batch.phi, batch.noise_var)
    found = estimator.estimate(batch.y, grid, batch.noise_var)
    assert float((found.signal - flat.signal).abs().max()) <= 1e-4 * float(flat.signal.abs().max())
    if flat.variance is not None:
        assert found.variance is not None
        assert float((found.variance - flat.variance).abs().max()) <= 1e-4 * float(flat.variance.max())


@cache
def _comb() -> ChannelProblem:
    """Six subcarriers, pilots on every second of them."""
    content = _problem().scenario.model_dump()
    content["channel"] |= {"subcarriers": 6, "subcarrier_spacing": 240e3}
    content["frontend"] |= {"pattern": {"kind": "comb", "spacing": 2, "seed": 1}}
    return ChannelProblem(Scenario.model_validate(content))


@pytest.mark.parametrize("name", estimator_names())
def test_pilots_on_some_subcarriers_tell_of_all_or_are_refused(name: str) -> None:
    """At 10 dB, for a moment's training: no worse than an estimate of zero, or one sentence."""
    batch, kind = _comb().sample(40, seed=5, split="validation", snr_db=10.0), estimator_class(name)
    if kind.narrowband:
        with pytest.raises(ValueError, match=f"{name} is for one subcarrier; small has 6"):
            kind.check(_comb())
        return
    if kind.alike_subcarriers:
        with pytest.raises(
            ValueError, match=f"{name} is for the same pilots on every subcarrier; small has them on some"
        ):
            kind.check(_comb())
        return
    kind.check(_comb())
    estimator = kind.build(_comb())
    if estimator.needs_fit:
        estimator.fit(_comb(), Fit(steps=4))
    found = estimator.eval().estimate(batch.y, batch.phi, batch.noise_var)
    assert _nmse(found.signal, batch.signal) <= HALF_A_DECIBEL
    assert found.variance is None or bool((found.variance >= 0).all())


def test_samples_of_several_snapshots_are_refused_unless_they_are_what_it_is_for() -> None:
    content = _comb().scenario.model_dump()
    content["channel"] |= {"snapshots": 6, "snapshot_interval": 1e-4}
    content["frontend"] |= {"snapshots": 6}
    problem = ChannelProblem(Scenario.model_validate(content))
    for name in estimator_names():
        if estimator_class(name).slots:
            estimator_class(name).check(problem)
            continue
        with pytest.raises(
            ValueError, match=r"is for one (snapshot at a time; a sample of small has 6|subcarrier; small has 6)"
        ):
            estimator_class(name).check(problem)


@pytest.mark.parametrize("pilots", [3, 6, 12])
@pytest.mark.parametrize("name", estimator_names())
def test_half_and_twice_the_pilots_are_fine(name: str, pilots: int) -> None:
    batch = _problem().with_pilots(pilots).sample(40, seed=5, split="validation", snr_db=10.0)
    found = _nmse(_estimator(name).estimate(batch.y, batch.phi, batch.noise_var).signal, batch.signal)
    assert name in HARDLY_TRAINED or found <= HALF_A_DECIBEL


@pytest.mark.parametrize("name", [name for name in estimator_names() if name != "ls"])
def test_much_noise_makes_no_estimate_worse_than_none_and_little_noise_does_no_harm(name: str) -> None:
    """`ls` is least squares whatever the noise."""
    levels = {}
    for snr_db in (-40.0, -20.0, 20.0, 100.0):
        batch = _problem().sample(200, seed=5, split="validation", snr_db=snr_db)
        levels[snr_db] = _nmse(_estimator(name).estimate(batch.y, batch.phi, batch.noise_var).signal, batch.signal)
    assert max(levels.values()) <= HALF_A_DECIBEL, levels
    assert levels[100.0] <= HALF_A_DECIBEL * levels[20.0], levels


@pytest.mark.parametrize("name", estimator_names())
def test_other_units_change_nothing_or_are_refused(name: str) -> None:
    """1e±6: the same figure or an error that says what to divide by. 0.03 to 30, where nothing is refused: hardly worse."""
    batch = _problem().sample(40, seed=5, split="validation", snr_db=10.0)
    estimator = _estimator(name)

    def level(scale: float) -> float:
        out = estimator.estimate(scale * batch.y, batch.phi, scale**2 * batch.noise_var)
        return 10 * math.log10(_nmse(out.signal / scale, batch.signal))

    usual = level(1.0)
    for scale in (1e-6, 1e6):
        if estimator.scale_free:
            assert level(scale) == pytest.approx(usual, abs=0.05)
        else:
            with pytest.raises(
                ValueError, match=r"E\|h\|² = 1.*Divide y by \d.\de[+-]0[567] and noise_var by its square"
            ):
                level(scale)
    for scale in (0.03, 30.0):
        assert level(scale) <= usual + 0.5


@pytest.mark.parametrize("name", estimator_names())
def test_an_unknown_noise_is_found_in_other_units_too(name: str) -> None:
    """Not as well: here nothing but E|h|² = 1 tells noise from channel, and in another unit not even that."""
    batch = _problem().sample(40, seed=5, split="validation", snr_db=10.0)
    estimator = _estimator(name)
    usual = _nmse(estimator.estimate(batch.y, batch.phi).signal, batch.signal)
    for scale in (1e-6, 1e6):
        if estimator.scale_free:
            found = _nmse(estimator.estimate(scale * batch.y, batch.phi).signal / scale, batch.signal)
            assert found <= min(2.0 * usual, HALF_A_DECIBEL)
        else:
            with pytest.raises(ValueError, match="Divide y by"):
                estimator.estimate(scale * batch.y, batch.phi)


def test_a_single_weak_channel_is_estimated_in_its_own_unit_and_its_variance_with_it() -> None:
    batch = _problem().sample(6, seed=3, snr_db=20.0)
    weak = torch.ones(6).index_fill(0, torch.tensor([2]), 0.01)
    estimator = _estimator("lmmse")
    mixed = estimator.estimate(weak[:, None] * batch.y, batch.phi, weak.square() * batch.noise_var)
    usual = estimator.estimate(batch.y, batch.phi, batch.noise_var)
    others = torch.tensor([0, 1, 3, 4, 5])
    assert torch.equal(mixed.signal[others], usual.signal[others])
    assert _nmse(mixed.signal[2:3] / 0.01, batch.signal[2:3]) < 2 * _nmse(usual.signal[2:3], batch.signal[2:3])
    assert mixed.variance is not None
    assert usual.variance is not None
    assert float(mixed.variance[2].mean() / usual.variance[2].mean()) == pytest.approx(1e-4, rel=1.0)


class OwnChannels(ChannelProblem):
    """A user's own channels: the scenario has the arrays and the beams only."""

    def channels(self, count: int, *, seed: int, split: Split = "test", start: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed + start)
        return torch.randn(count, self.signal_length, dtype=self.dtype, generator=generator)


@pytest.mark.parametrize("name", ["atom-lmmse", "gated-lmmse", "ray-sbl"])
def test_what_learns_from_rays_says_so_where_there_are_none(name: str) -> None:
    problem = OwnChannels(_problem().scenario)
    with pytest.raises(ValueError, match="OwnChannels brings channels of its own, whose rays nobody knows"):
        estimator_class(name).build(problem).fit(problem, Fit(steps=2))


def test_vlista_can_start_from_weights_of_a_dlista_adaptive() -> None:
    estimator = estimator_class("vlista").build(_problem())
    estimator.begin_with(_estimator("a-dlista-adaptive"))
    assert estimator.fit(_problem(), Fit(steps=2))["start"] == "weights of a-dlista-adaptive"
