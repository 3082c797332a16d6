"""The factored coefficients are Sionna's: same rays, same matrices; its own draws have the same moments."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from chanest.arrays import Array, Sector, ula, upa
from chanest.channels.cdl import CdlModel, CdlSource, cdl_table
from chanest.channels.paths import PathSource
from chanest.channels.sionna_backend import global_state_kept, sionna_array
from chanest.channels.source import Direction

MODELS: tuple[CdlModel, ...] = ("A", "B", "C", "D", "E")
PAIRS = {
    "ULA, single": (ula(16), ula(4)),
    "ULA, dual": (ula(8, polarization="cross"), ula(2, polarization="VH")),
    "UPA, single": (upa(4, 4, pattern="38.901"), upa(2, 2, polarization="H")),
    "UPA, dual": (
        upa(4, 2, polarization="cross", pattern="38.901"),
        upa(2, 2, polarization="VH", pattern="38.901-handheld"),
    ),
}
TILTED = (Sector(0.0, 1.0, 0.1, 0.0), Sector(math.pi, math.pi, -0.2, 0.3))


def _relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("moving", [False, True], ids=["still", "moving"])
@pytest.mark.parametrize("arrays", PAIRS.values(), ids=PAIRS.keys())
@pytest.mark.parametrize("model", MODELS)
def test_same_rays_give_sionnas_coefficients(model: CdlModel, arrays: tuple[Array, Array], moving: bool) -> None:
    direction: Direction = "uplink" if moving else "downlink"
    source = CdlSource(
        *arrays, models=(model,), direction=direction, bs_sector=TILTED[0], ue_sector=TILTED[1],
        speed=(30.0, 30.0) if moving else (0.0, 0.0), snapshots=4 if moving else 1, snapshot_interval=1e-3,
    )  # fmt: skip
    rays = source.rays(range(4), seed=3)
    assert moving == bool(rays.time.any())
    taps, theirs = source.taps(rays), replace(source, backend="sionna").taps(rays)
    assert _relative(taps, theirs) < 1e-5
    assert _relative(source.matrices(rays), theirs.sum(1)) < 1e-5


def test_a_mixture_gives_each_sample_the_coefficients_of_its_model() -> None:
    source = CdlSource(upa(2, 2), ula(2), models=MODELS)
    rays = source.rays(range(32), seed=1)
    assert set(rays.model.tolist()) == set(range(5))
    # Sionna sorts by delay, and padding clusters tie with the last one: compare the sums.
    assert _relative(source.matrices(rays), replace(source, backend="sionna").matrices(rays)) < 1e-5


def test_plain_paths_have_sionnas_coefficients_too() -> None:
    source = PathSource(ula(8), ula(4), frequencies=tuple(1e8 * k for k in range(4)))
    rays = source.rays(range(5), seed=2)
    assert _relative(source.taps(rays), replace(source, backend="sionna").taps(rays)) < 1e-5


def test_frequency_response_is_that_of_the_taps() -> None:
    frequencies = tuple(120e3 * k for k in range(-8, 8))
    source = CdlSource(ula(4), ula(2), models=("E",), frequencies=frequencies, delay_spread=300e-9)
    rays = source.rays(range(3), seed=1)
    theirs = replace(source, backend="sionna").taps(rays).to(torch.complex128)
    expected = torch.stack(
        [(theirs * torch.exp(-2j * math.pi * f * rays.delays.double())[:, :, None, None]).sum(1) for f in frequencies],
        1,
    )
    assert _relative(source.matrices(rays).to(torch.complex128), expected) < 1e-5


@pytest.mark.parametrize("model", MODELS)
def test_tables_and_rays_are_those_of_sionnas_cdl(model: CdlModel) -> None:
    cdl = _sionna_cdl(model, ula(2), ula(2))
    table = cdl_table(model)
    order = torch.argsort(cdl._delays, stable=True)
    for angles, name in zip(table.angles, ("aoa", "aod", "zoa", "zod"), strict=True):
        torch.testing.assert_close(angles, getattr(cdl, f"_{name}")[order].double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(table.powers, cdl._powers[order].double(), atol=1e-7, rtol=1e-6)
    torch.testing.assert_close(table.delays * 100e-9, cdl._delays[order].double(), atol=1e-14, rtol=1e-6)
    assert table.k_factor == pytest.approx(float(cdl._k_factor), rel=1e-5)
    assert table.xpr == pytest.approx(float(cdl._xpr), rel=1e-5)


@pytest.mark.parametrize("model", ["A", "B", "C", "D", "E"])
def test_distribution_is_that_of_sionnas_own_draws(model: CdlModel) -> None:
    """Power, power of each tap, spatial correlation and mean, within 5 standard errors of two sets of 1000 channels.

    Fixed orientation and line-of-sight phase, as Sionna's CDL has them. A mean over N channels of a quantity with
    standard deviation s has the error s/√N; two means differ by more than 5·√(s₁² + s₂²)/√N once in 2 million draws.
    """
    bs, ue = ula(4, pattern="38.901"), ula(2)
    count = 1000
    still = Sector(0.0), Sector(math.pi)
    source = CdlSource(bs, ue, models=(model,), bs_sector=still[0], ue_sector=still[1], random_los_phase=False)
    rays = source.rays(range(count), seed=5)
    ours = source.taps(rays) / source.scale
    with global_state_kept():
        from sionna.phy import config

        config.seed = 11
        taps, delays = _sionna_cdl(model, bs, ue)(count, 1, 1.0)
    theirs = taps[:, 0, :, 0, :, :, 0].permute(0, 3, 1, 2)
    torch.testing.assert_close(rays.delays[0].double(), delays[0, 0, 0], atol=1e-13, rtol=1e-5)
    statistics: dict[str, Callable[[Tensor], Tensor]] = {
        "power": lambda h: h.abs().square().sum(1).mean((1, 2))[:, None],
        "delay profile": lambda h: h.abs().square().mean((2, 3)),
        "transmit correlation": lambda h: _parts((h[..., :1] * h[..., 1:].conj()).sum((1, 2))),
        "receive correlation": lambda h: _parts((h[:, :, 0] * h[:, :, 1].conj()).sum((1, 2))[:, None]),
        "mean of the first tap": lambda h: _parts(h[:, 0].flatten(1)),
    }
    if model in ("D", "E"):
        statistics["K-factor"] = _k_factors
    for name, statistic in statistics.items():
        a, b = statistic(ours), statistic(theirs)
        error = torch.sqrt((a.var(0) + b.var(0)) / len(a))
        excess = ((a.mean(0) - b.mean(0)).abs() / (5 * error + 1e-7)).max()
        assert excess < 1, f"{name}: {float(excess):.2f} of the allowed difference"


@pytest.mark.parametrize("model", ["D", "E"])
def test_k_factor_is_the_tables(model: CdlModel) -> None:
    """Line of sight over the rest, from the matrices: the mean of the first tap over phases is the line of sight."""
    fixed = CdlSource(ula(2), ula(2), models=(model,), bs_sector=Sector(), ue_sector=Sector(), random_los_phase=False)
    h = fixed.taps(fixed.rays(range(3000), seed=2))
    specular = h[:, 0].mean(0).abs().square().mean()
    k_factor = specular / (h.abs().square().sum(1).mean() - specular)
    table = cdl_table(model)
    # The mean of 3000 diffuse first taps adds a bias below 1e-5; the spread of the ratio is below one per cent.
    assert float(k_factor) == pytest.approx(table.k_factor, rel=0.03)


def _k_factors(h: Tensor) -> Tensor:
    """Specular over diffuse power of each of 20 groups of channels: [20, 1]. The groups tell the error of the mean."""
    groups = h.reshape(20, -1, *h.shape[1:])
    specular = groups[:, :, 0].mean(1).abs().square().mean((1, 2))
    return (specular / (groups.abs().square().sum(2).mean((1, 2, 3)) - specular))[:, None]


def _parts(values: Tensor) -> Tensor:
    return torch.cat([values.real, values.imag], -1).flatten(1)


def _sionna_cdl(model: CdlModel, bs: Array, ue: Array):  # type: ignore[no-untyped-def]
    with global_state_kept():
        from sionna.phy.channel.tr38901 import CDL

        carrier = 28e9
        return CDL(
            model, 100e-9, carrier, ut_array=sionna_array(ue, carrier), bs_array=sionna_array(bs, carrier),
            direction="downlink", precision="double", device="cpu",
        )  # fmt: skip
