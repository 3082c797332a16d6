"""The broad random family: what its ranges say is what its rays have."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from chanest.arrays import Sector, upa
from chanest.channels.clusters import ClusterSource, around_mean
from chanest.channels.coefficients import Directions
from chanest.channels.rays import Rays
from chanest.scenario import Scenario

COUNT = 2000
SOURCE = ClusterSource(upa(2, 2), upa(1, 2), bs_sector=Sector(0.0, 1.0), ue_sector=Sector(math.pi, math.pi))


@cache
def _rays() -> Rays:
    return SOURCE.rays(range(COUNT), seed=1)


def _used(rays: Rays) -> Tensor:
    return rays.powers > 0


def _quantiles(values: Tensor) -> list[float]:
    return [float(value) for value in torch.quantile(values.double(), torch.tensor([0.25, 0.5, 0.75]).double())]


def test_the_number_of_clusters_is_log_uniform_from_one_to_thirty() -> None:
    count = _used(_rays()).sum(1)
    assert (int(count.min()), int(count.max())) == (1, 30)
    assert float((count <= 5).double().mean()) == pytest.approx(math.log(6) / math.log(31), abs=0.04)
    first = torch.arange(30) < count[:, None]
    assert torch.equal(_used(_rays()), first)
    assert int(_used(replace(SOURCE, clusters=(4, 4)).rays(range(20), seed=0)).sum(1).unique()) == 4


def test_powers_of_a_sample_are_one_in_all_and_fall_with_delay_within_their_range() -> None:
    rays = _rays()
    torch.testing.assert_close(rays.powers.sum(1), torch.ones(COUNT))
    assert bool((rays.delays.diff(dim=1) >= 0).all())
    assert not rays.delays[:, 0].any()
    level = 10 * torch.log10(rays.powers[_used(rays)] / rays.powers.amax(1, keepdim=True).expand(-1, 30)[_used(rays)])
    assert -25.01 < float(level.min()) < -24.0
    many = replace(SOURCE, clusters=(30, 30), shadowing_db=(0.0, 0.0), delay_spread=(1e-7, 1e-7)).rays(range(4), seed=0)
    slope = (10 * many.powers.log10()).diff(dim=1) / many.delays.diff(dim=1)
    torch.testing.assert_close(slope, torch.full_like(slope, -5 / math.log(10) / 1e-7), rtol=0.02, atol=0.0)


def test_delay_spread_is_that_of_the_range() -> None:
    """The power-weighted rms of many clusters without shadowing is that of the model, about DS."""
    still = replace(SOURCE, clusters=(30, 30), shadowing_db=(0.0, 0.0), delay_spread=(2e-7, 2e-7))
    rays = still.rays(range(500), seed=0)
    mean = (rays.powers * rays.delays).sum(1, keepdim=True)
    rms = (rays.powers * (rays.delays - mean).square()).sum(1).sqrt()
    assert float(rms.mean()) == pytest.approx(2e-7, rel=0.1)
    every = _rays().delays[_used(_rays()).sum(1) == 30].amax(1)
    assert float(every.max()) / float(every.min()) > 20


def _spreads(rays: Rays, angles: Tensor) -> Tensor:
    """In degrees, of every cluster that has power."""
    return torch.rad2deg(angles.std(2)[_used(rays)])


def test_spreads_are_log_uniform_and_narrower_in_zenith() -> None:
    """Measured from the 20 rays of a cluster, whose standard deviation has an error of its own of about a sixth."""
    rays = _rays()
    for azimuth, zenith in ((rays.aoa, rays.zoa), (rays.aod, rays.zod)):
        across, up = _spreads(rays, azimuth), _spreads(rays, zenith)
        specular = across < 1e-3
        assert float(specular.double().mean()) == pytest.approx(0.25, abs=0.05)
        across, up = across[~specular], up[~specular]
        assert _quantiles(across) == pytest.approx([0.05 * 600**q for q in (0.25, 0.5, 0.75)], rel=0.15)
        assert float(across.max()) < 75.0
        assert float((up / across).median()) == pytest.approx(0.35, abs=0.05)


def test_offsets_are_laplacian_in_half_of_the_samples() -> None:
    """Kurtosis over a fixed spread: 6 for the Laplacian, 3 for the Gaussian."""
    fixed = replace(SOURCE, clusters=(20, 20), specular=0.0, spread=(2.0, 2.0), zenith_ratio=(0.5, 0.5))
    angles = fixed.rays(range(400), seed=0).aoa
    offset = (angles - angles.median(2, keepdim=True).values).flatten(1)
    kurtosis = (offset**4).mean(1) / (offset**2).mean(1) ** 2
    assert float(torch.rad2deg(offset.square().mean().sqrt())) == pytest.approx(2.0, rel=0.05)
    assert 0.4 < float((kurtosis > 4.2).double().mean()) < 0.6


def test_directions_lie_around_their_mean_with_the_concentration_of_the_law() -> None:
    """E cos(angle to the mean) of a von Mises–Fisher law is coth κ - 1/κ, and 0 on the whole sphere."""
    draws = torch.rand(2, 4, 5000, generator=torch.Generator().manual_seed(0))
    kappa = torch.tensor([0.0, 1.0, 10.0, 1e4])
    zenith, azimuth = torch.full((4,), 1.1), torch.full((4,), -0.4)
    found = Directions.of(*around_mean(zenith, azimuth, kappa, draws[0], draws[1])).vectors()
    mean = Directions.of(zenith, azimuth).vectors()
    along = (found * mean[:, None]).sum(2).mean(1)
    law = [0.0, *(1 / math.tanh(each) - 1 / each for each in (1.0, 10.0, 1e4))]
    assert along.tolist() == pytest.approx(law, abs=0.03)
    turned = found[2].mean(0) / found[2].mean(0).norm()
    torch.testing.assert_close(turned, mean[2], atol=0.02, rtol=0.0)


def test_half_of_the_samples_have_a_line_of_sight_in_its_range() -> None:
    rays = _rays()
    los = rays.k_factor > 0
    assert float(los.double().mean()) == pytest.approx(0.5, abs=0.04)
    level = 10 * rays.k_factor[los].log10()
    assert -5.01 < float(level.min()) < -4.5
    assert 19.5 < float(level.max()) < 20.01
    cross = -20 * rays.strength[:, 0, 0, 1].log10()
    assert 0.0 <= float(cross.min()) < 0.5
    assert 29.5 < float(cross.max()) < 30.01
    assert not replace(SOURCE, line_of_sight=0.0).rays(range(50), seed=0).k_factor.any()


@pytest.mark.parametrize("polarization", ["V", "cross"])
def test_power_is_one_over_the_ensemble(polarization: str) -> None:
    array = upa(1, 2, polarization=polarization)  # type: ignore[arg-type]
    source = replace(SOURCE, bs=array, ue=array)
    power = source.sample(3000, seed=3)[0].abs().square().mean((1, 2))
    assert abs(float(power.mean()) - 1) < 5 * float(power.std()) / math.sqrt(3000)


def test_padding_changes_no_channel() -> None:
    rays = replace(SOURCE, clusters=(1, 30)).rays(range(8), seed=5)
    few = rays.select((rays.powers > 0).sum(1) < 10)
    assert len(few)
    assert few.without_padding().powers.shape[1] < 10
    torch.testing.assert_close(
        SOURCE.matrices(few), SOURCE.scale * SOURCE.factors(few).narrowband(), atol=1e-6, rtol=1e-5
    )


def test_a_range_the_wrong_way_round_is_refused() -> None:
    arrays = {"bs": {"rows": 1, "columns": 2}, "ue": {"rows": 1, "columns": 1}, "frontend": {"pilots": 2}}
    channel = {"kind": "clusters", "spread": [10.0, 1.0]}
    with pytest.raises(
        ValueError, match=r"spread must be \[least, largest\] with 1e-06 <= least <= largest <= 90, got"
    ):
        Scenario.model_validate({"name": "own", **arrays, "channel": channel})


def test_each_end_may_have_spreads_of_its_own_and_one_for_all_clusters() -> None:
    """Without a change to what is drawn otherwise: directions of clusters, powers and delays stay."""
    ends = replace(SOURCE, specular=0.0, bs_spread=(1.0, 2.0), ue_spread=(10.0, 20.0))
    for source, bs, ue in ((ends, "aod", "aoa"), (replace(ends, direction="uplink"), "aoa", "aod")):
        rays = source.rays(range(200), seed=1)
        narrow, wide = (_spreads(rays, getattr(rays, name)).median() for name in (bs, ue))
        assert 1.0 < float(narrow) < 2.0
        assert 10.0 < float(wide) < 20.0
    usual, other = (source.rays(range(50), seed=1) for source in (replace(SOURCE, specular=0.0), ends))
    assert torch.equal(usual.powers, other.powers)
    assert torch.equal(usual.phases, other.phases)
    of_one = replace(ends, ue_spread=(1.0, 30.0), clusters=(30, 30)).rays(range(100), seed=1)
    alike = replace(ends, ue_spread=(1.0, 30.0), clusters=(30, 30), one_spread=True).rays(range(100), seed=1)
    varied, one = (torch.log(rays.aoa.std(2)).std(1).median() for rays in (of_one, alike))
    assert float(one) < 0.3 < 0.7 < float(varied)


def test_a_base_station_may_have_its_clusters_ahead() -> None:
    around = replace(SOURCE, specular=1.0, concentrated=1.0, concentration=(30.0, 30.0), level=1.0)
    for source, bs, ue in (
        (replace(around, bs_ahead=True), "aod", "aoa"),
        (replace(around, bs_ahead=True, direction="uplink"), "aoa", "aod"),
    ):
        rays = source.rays(range(300), seed=2)
        facing, anywhere = (getattr(rays, name)[_used(rays)].cos() for name in (bs, ue))
        assert float((facing > 0.5).double().mean()) > 0.98
        assert float((anywhere > 0.5).double().mean()) == pytest.approx(1 / 3, abs=0.1)
