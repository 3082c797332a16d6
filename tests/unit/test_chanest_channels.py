"""Channel sources: unit power, reproducible bytes, the beam domain, orientation, motion."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from chanest.arrays import ula, upa
from chanest.channels import CdlSource, Sector
from chanest.channels.cdl import cdl_table
from chanest.channels.coefficients import expected_power
from chanest.channels.paths import PathSource, raised_cosine
from chanest.channels.rays import Rays, strengths
from chanest.channels.source import ChannelSource, drawn_power

PATHS = PathSource(ula(8), ula(8), frequencies=tuple(1e8 * k for k in range(16)), symbol_time=1 / 16e8)
SOURCES: dict[str, ChannelSource] = {
    "omni": CdlSource(upa(4, 4), upa(2, 2)),
    "patterns, tilt, dual": CdlSource(
        upa(2, 2, polarization="cross", pattern="38.901"),
        upa(1, 2, polarization="VH", pattern="38.901-handheld"),
        models=("D",),
        bs_sector=Sector(0.0, 1.0, 0.1, 0.2),
        ue_sector=Sector(math.pi, math.pi, 0.0, 0.4),
    ),
    "random delays": CdlSource(
        ula(4),
        upa(1, 2, polarization="VH", pattern="38.901-handheld"),
        models=("C", "D"),
        frequencies=tuple(1e6 * k for k in range(8)),
        delay_spread=(3e-8, 3e-7),
        timing_offset=(-1e-7, 4e-7),
        delay_window=(1e-7, 9e-7),
    ),
    "mixture, wideband": CdlSource(ula(4), ula(2), models=("A", "E"), frequencies=tuple(1e6 * k for k in range(8))),
    "paths": PATHS,
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_ensemble_power_is_one(source: ChannelSource) -> None:
    """The constant is computed, not fitted: the mean over 3000 channels lies within 5 standard errors of one."""
    h, _ = source.sample(3000, seed=0)
    power = h.abs().square().flatten(1).mean(1)
    assert abs(float(power.mean()) - 1) < 5 * float(power.std()) / math.sqrt(3000)


@pytest.mark.parametrize("name", ["omni", "patterns, tilt, dual"])
def test_power_expected_of_rays_is_that_over_their_phases(name: str) -> None:
    """Within 5 standard errors over 4000 draws of the phases, and in the mean over rays the constant of the ensemble."""
    source = SOURCES[name]
    rays = source.rays(range(1), seed=2)
    many = Rays(*(tensor.expand(4000, *tensor.shape[1:]) for tensor in rays.tensors()))
    generator = torch.Generator().manual_seed(0)
    turned = replace(many, phases=2 * math.pi * torch.rand(many.phases.shape, generator=generator))
    power = source.factors(turned).narrowband().abs().square().mean((1, 2))
    expected = expected_power(rays, source.rx, source.tx)
    assert abs(float(power.mean() - expected)) < 5 * float(power.std()) / math.sqrt(4000)
    assert drawn_power(source, draws=1024) == pytest.approx(source.mean_power, rel=0.05)


def test_a_cross_polarisation_ratio_of_every_ray_is_sionnas() -> None:
    source = CdlSource(upa(2, 2, polarization="cross"), upa(1, 2, polarization="VH"))
    rays = source.rays(range(3), seed=1)
    ratio = 10 ** (3 * torch.rand(rays.aoa.shape, generator=torch.Generator().manual_seed(0)))
    each = replace(rays, strength=strengths(ratio))
    ours, theirs = source.matrices(each), replace(source, backend="sionna").matrices(each)
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5
    assert float((ours - source.matrices(rays)).norm() / ours.norm()) > 0.05
    own = replace(rays, strength=torch.tensor([1.0, 0.5, 0.1, 0.7]).reshape(1, 1, 1, 4).expand(3, -1, -1, -1))
    with pytest.raises(ValueError, match="backend must be factored"):
        replace(source, backend="sionna").matrices(own)


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_bytes_do_not_depend_on_the_batch_size_or_the_threads(source: ChannelSource) -> None:
    whole, rays = source.sample(256, seed=9)
    for size in (1, 7):
        for start in (0, 7, 70, 249):
            part, part_rays = source.sample(size, seed=9, start=start)
            assert torch.equal(part, whole[start : start + size])
            assert rays is not None
            assert part_rays is not None
            assert torch.equal(part_rays.phases, rays.phases[start : start + size])
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        again, _ = source.sample(256, seed=9)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(again, whole)


def test_seeds_splits_and_samples_differ() -> None:
    source = SOURCES["omni"]
    first, _ = source.sample(16, seed=0)
    others = [
        source.sample(16, seed=1)[0],
        source.sample(16, seed=0, split="train")[0],
        source.sample(16, seed=0, start=16)[0],
    ]
    for other in others:
        assert not torch.isclose(first, other).any()


def test_drawing_leaves_the_global_generator_alone_and_does_not_read_it() -> None:
    source = SOURCES["omni"]
    before = torch.get_rng_state()
    first, _ = source.sample(5, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(100)
    again, _ = replace(source, backend="factored").sample(5, seed=3)
    assert torch.equal(first, again)
    state = torch.get_rng_state()
    replace(source, backend="sionna").sample(2, seed=3)
    assert torch.equal(torch.get_rng_state(), state)


_HALF = """
import hashlib, sys, chanest
problem = chanest.ChannelProblem(chanest.load_scenario("cdl_c_upa64x4"))
batch = problem.sample(24, seed=1, start=int(sys.argv[1]))
sys.stdout.write(hashlib.sha256(batch.signal.numpy().tobytes() + batch.y.numpy().tobytes()).hexdigest())
"""


def test_two_processes_draw_the_bytes_of_one() -> None:
    import chanest

    problem = chanest.ChannelProblem(chanest.load_scenario("cdl_c_upa64x4"))
    whole = problem.sample(48, seed=1)
    running = [
        subprocess.Popen([sys.executable, "-c", _HALF, str(start)], stdout=subprocess.PIPE, text=True)
        for start in (0, 24)
    ]
    for start, process in zip((0, 24), running, strict=True):
        digest, _ = process.communicate(timeout=60)
        part = slice(start, start + 24)
        expected = hashlib.sha256(whole.signal[part].numpy().tobytes() + whole.y[part].numpy().tobytes()).hexdigest()
        assert digest == expected


@pytest.mark.parametrize("chains", [0, 2], ids=["digital", "2 chains"])
def test_beam_domain_equals_the_beams_of_the_matrix(chains: int) -> None:
    for name in ("omni", "patterns, tilt, dual"):
        source = SOURCES[name]
        rays = source.rays(range(4), seed=1)
        generator = torch.Generator().manual_seed(0)
        beams = torch.randn(4, source.tx.ports, 6, dtype=torch.complex64, generator=generator)
        h = source.matrices(rays)
        expected = (h @ beams).mT
        combiner = None
        if chains:
            combiner = torch.randn(4, 6, source.rx.ports, chains, dtype=torch.complex64, generator=generator)
            expected = (combiner.mH @ expected[..., None])[..., 0]
        torch.testing.assert_close(source.beams(rays, beams, combiner), expected, atol=2e-5, rtol=1e-4)


def test_orientation_and_line_of_sight_phase_are_random_by_default_and_can_be_fixed() -> None:
    free = CdlSource(ula(2), ula(2), models=("D",))
    rays = free.rays(range(400), seed=0)
    assert float(rays.tx_orientation[:, 0].abs().max()) <= math.pi / 3 + 1e-6
    assert float(rays.tx_orientation[:, 0].std()) == pytest.approx(2 * math.pi / 3 / math.sqrt(12), rel=0.1)
    assert float(rays.rx_orientation[:, 0].std()) == pytest.approx(2 * math.pi / math.sqrt(12), rel=0.1)
    assert float(torch.polar(torch.ones(400), rays.los_phase).mean().abs()) < 0.2
    still = replace(free, bs_sector=Sector(), ue_sector=Sector(math.pi), random_los_phase=False)
    fixed = still.rays(range(50), seed=0)
    assert not fixed.tx_orientation.any()
    assert not fixed.los_phase.any()
    assert float(fixed.rx_orientation[:, 0].std()) == 0.0


def test_consecutive_snapshots_share_rays_and_turn_with_doppler() -> None:
    """At 30 m/s and 28 GHz the largest Doppler shift is 2.8 kHz: snapshots 1 µs apart agree, 1 ms apart do not."""
    close = CdlSource(ula(4), ula(2), speed=(30.0, 30.0), snapshots=4, snapshot_interval=1e-6)
    far = replace(close, snapshot_interval=1e-3)
    for source, alike in ((close, True), (far, False)):
        h, rays = source.sample(8, seed=0)
        assert rays is not None
        assert torch.equal(rays.phases[0], rays.phases[3])
        assert not torch.equal(rays.phases[3], rays.phases[4])
        change = float((h[1] - h[0]).norm() / h[0].norm())
        assert (change < 0.05) == alike
    assert torch.equal(close.sample(1, seed=0)[0], far.sample(1, seed=0)[0])


def test_raised_cosine_is_a_nyquist_pulse() -> None:
    time = torch.arange(-4, 5, dtype=torch.float64)
    torch.testing.assert_close(raised_cosine(time, 0.8), (time == 0).double(), atol=1e-12, rtol=0)
    edge = torch.tensor([1 / 1.6, 1 / 1.6 + 1e-7], dtype=torch.float64)
    assert float(raised_cosine(edge, 0.8).diff()) == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"models": ("F",)}, "models"),
        ({"speed": (3.0, 1.0)}, "speed"),
        ({"delay_spread": -1.0}, "delay_spread"),
        ({"delay_spread": (2e-7, 1e-7)}, "delay_spread"),
        ({"timing_offset": (0.0, 2.0)}, "timing_offset"),
        ({"delay_window": (-1.0, 1.0)}, "delay_window"),
    ],
)
def test_bad_sources_are_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        CdlSource(ula(2), ula(2), **change)  # type: ignore[arg-type]


def test_a_range_of_one_value_draws_what_the_value_draws() -> None:
    fixed = SOURCES["mixture, wideband"]
    assert isinstance(fixed, CdlSource)
    ranged = replace(fixed, delay_spread=(100e-9, 100e-9), timing_offset=(0.0, 0.0))
    assert torch.equal(fixed.sample(4, seed=1)[0], ranged.sample(4, seed=1)[0])
    varied, rays = replace(fixed, delay_spread=(50e-9, 200e-9)).sample(4, seed=1)
    known = fixed.rays(range(4), seed=1)
    assert rays is not None
    assert torch.equal(rays.phases, known.phases)
    assert not torch.isclose(varied, fixed.sample(4, seed=1)[0])[:, 1:].all(-1).any()


def test_delays_lie_in_their_ranges_and_the_window_cuts_off_what_comes_later() -> None:
    source = SOURCES["random delays"]
    rays = source.rays(range(400), seed=3)
    first = rays.delays[:, 0]
    late = rays.delays - first[:, None]
    assert float(first.min()) >= -1e-7
    assert float(first.max()) <= 4e-7
    assert float(first.max() - first.min()) > 4.8e-7
    last = late.masked_fill(rays.powers == 0, 0.0).amax(1)
    assert float(last.max()) <= 9e-7
    assert bool((rays.powers == 0).any(1).double().mean() > 0.3)
    assert bool((rays.powers[late < 1e-7] >= 0).all())
    torch.testing.assert_close(rays.powers.sum(1), torch.ones(400))
    spread = late[rays.model == 0, 1] / cdl_table("C").delays[1]
    assert 3e-8 <= float(spread.min()) < 4e-8
    assert 2.5e-7 < float(spread.max()) <= 3.001e-7
