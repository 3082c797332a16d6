"""Cells of TR 38.901 are Sionna's: the same drops give its channels, and their spreads are those of its own drops."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from chanest.arrays import Array, Sector, ula, upa
from chanest.channels.sionna_backend import global_state_kept, sionna_array
from chanest.channels.source import Direction
from chanest.channels.system_level import Environment, SystemLevelSource
from vlista_core.draws import sample_generators

ENVIRONMENTS: tuple[Environment, ...] = get_args(Environment)
CARRIERS = {"umi": 28e9, "uma": 28e9, "rma": 3.5e9, "inh": 28e9}
TILTED = Sector(0.2, 1.0, 0.1, 0.0), Sector(math.pi, math.pi, -0.2, 0.3)
FREQUENCIES = tuple(1e6 * k for k in range(-8, 8))
COUNT = 16
OUTDOORS = 0.2
"""Share of users indoors where the others may be in line of sight."""


@pytest.mark.parametrize("direction", get_args(Direction))
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_same_drops_give_sionnas_channels(environment: Environment, direction: Direction) -> None:
    """With path loss, shadowing, line of sight and the parts of strong clusters, to 1e-5 of each user's channel."""
    carrier = CARRIERS[environment]
    bs, ue = upa(2, 2, polarization="cross", pattern="38.901"), ula(2, polarization="VH")
    source = SystemLevelSource(
        bs, ue, carrier, direction, FREQUENCIES, environment=environment, normalisation="ensemble",
        bs_sector=TILTED[0], ue_sector=TILTED[1], indoor=None if environment == "inh" else OUTDOORS,
    )  # fmt: skip
    rays = source.rays(range(COUNT), seed=3)
    assert bool((rays.k_factor > 0).any())
    taps = source.factors(rays).taps()
    ours = (source.delay_response(rays).to(taps.dtype) @ taps.flatten(2)).reshape(COUNT, *source.shape)
    theirs = _sionnas(source, rays.phases, rays.tx_orientation, rays.rx_orientation)
    error = (ours - theirs).flatten(1).norm(dim=1) / theirs.flatten(1).norm(dim=1)
    assert float(error.max()) < 1e-5


@pytest.mark.parametrize("environment", ["umi", "inh"])
def test_the_backend_gives_sionnas_coefficients(environment: Environment) -> None:
    arrays = upa(4, 2), upa(2, 2, polarization="cross")
    both = [
        SystemLevelSource(*arrays, environment=environment, backend=backend, speed=(3.0, 30.0))
        for backend in ("factored", "sionna")
    ]
    rays = both[0].rays(range(8), seed=1)
    ours, theirs = (source.matrices(rays) for source in both)
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_spreads_are_those_of_sionnas_own_drops(environment: Environment) -> None:
    """Means of log delay spread, of log angular spreads and of the K-factor, within 5 standard errors of 480 users each.

    And the share of users in line of sight within five standard errors of a share.
    """
    source = SystemLevelSource(ula(1), ula(1), CARRIERS[environment], environment=environment)
    rays = source.rays(range(480), seed=9)
    weights = rays.powers[:, :, None].expand_as(rays.aoa).flatten(1)
    ours = _spreads(
        rays.powers, rays.delays, weights, *(a.flatten(1) for a in (rays.aoa, rays.aod, rays.zoa, rays.zod))
    )
    with global_state_kept():
        from sionna.phy import config

        config.seed = 5
        model = _model(environment, CARRIERS[environment], ula(1), ula(1), "downlink", count=480)
        drawn = model._ray_sampler(model._lsp)
        los = model._scenario.los.flatten()
    powers = drawn.powers[:, 0, 0] / drawn.powers[:, 0, 0].sum(1, keepdim=True)
    angles = [getattr(drawn, name)[:, 0, 0].flatten(1) for name in ("aoa", "aod", "zoa", "zod")]
    weights = powers[:, :, None].expand(-1, -1, 20).flatten(1)
    theirs = _spreads(powers, drawn.delays[:, 0, 0], weights, *angles)
    error = torch.sqrt((ours.var(0) + theirs.var(0)) / 480)
    excess = (ours.mean(0) - theirs.mean(0)).abs() / (5 * error)
    assert float(excess.max()) < 1, excess
    share, other = float((rays.k_factor > 0).double().mean()), float(los.double().mean())
    assert abs(share - other) <= 5 * math.sqrt(0.5 / 480)


def _spreads(powers: Tensor, delays: Tensor, weights: Tensor, *angles: Tensor) -> Tensor:
    """log10 of the root mean square delay and of the circular spread of each angle: [batch, 1 + angles]."""
    powers, delays, weights = powers.double(), 1e9 * delays.double(), weights.double() / weights.sum(1, keepdim=True)
    mean = (powers * delays).sum(1, keepdim=True)
    found = [torch.sqrt((powers * (delays - mean) ** 2).sum(1)).clamp_min(1e-3)]
    for angle in angles:
        centre = (weights * torch.exp(1j * angle.double())).sum(1).abs().clamp_max(1 - 1e-12)
        found.append(torch.sqrt(-2 * torch.log(centre)))
    return torch.log10(torch.stack(found, 1))


def _sionnas(source: SystemLevelSource, phases: Tensor, tx_turn: Tensor, rx_turn: Tensor) -> Tensor:
    """Sionna's frequency response of the first drop of seed 3 with our phases and orientations: [16, f, N_r, N_t]."""
    with global_state_kept():
        from sionna.phy import config

        generator = config.torch_rng("cpu")
        state = generator.get_state()
        generator.manual_seed(sample_generators(3, "test", [0], "drops")[0].initial_seed())
        model = _model(
            source.environment,
            source.carrier,
            source.bs,
            source.ue,
            source.direction,
            count=COUNT,
            indoor=source.indoor,
        )
        drawn = model._ray_sampler(model._lsp)
        generator.set_state(state)
        # Our rays are in the order of the parts, Sionna's in that of the clusters: hand back the phases of each.
        drawn.phases = _unparted(source, phases)[:, None, None]
        del model._ray_sampler
        model._ray_sampler = lambda lsp: drawn
        bearing = torch.deg2rad(model._scenario.los_aod[:, 0, 0])[:, None]
        turned = [torch.cat([turn[:, :1] + bearing, turn[:, 1:]], 1)[:, None] for turn in (tx_turn, rx_turn)]
        base, user = turned if source.direction == "downlink" else turned[::-1]
        model._scenario._bs_orientations, model._scenario._ut_orientations = base.double(), user.double()
        taps, delays = model(1, 1.0)
    h, tau = taps[:, 0, :, 0, :, :, 0], delays[:, 0, 0]
    turns = torch.exp(-2j * math.pi * torch.tensor(FREQUENCIES, dtype=torch.float64)[:, None] * tau[:, None, :])
    return torch.einsum("brtp,bfp->bfrt", h, turns.to(h.dtype))


def _unparted(source: SystemLevelSource, phases: Tensor) -> Tensor:
    """Phases of the rays of whole clusters, from those of the parts: [16, clusters, 20, 4]."""
    drop = source.drop(range(COUNT), seed=3)
    rays = source.rays(range(COUNT), seed=3)
    result = torch.zeros(*drop.xpr.shape, 4, dtype=torch.float64)
    for user in range(COUNT):
        for cluster in range(drop.xpr.shape[1]):
            same = (
                rays.aoa[user] == drop.angles[0 if source.direction == "downlink" else 2, user, cluster].float()
            ).all(1)
            for part in torch.nonzero(same).flatten():
                present = rays.strength[user, part, :, 0] > 0
                result[user, cluster, present] = phases[user, part, present].double()
    return result


def _model(
    environment: Environment,
    carrier: float,
    bs: Array,
    ue: Array,
    direction: Direction,
    *,
    count: int,
    indoor: float | None = None,
) -> Any:
    """Sionna's model with `count` users in cells of their own."""
    from sionna.phy.channel import gen_single_sector_topology, tr38901
    from sionna.sys import gen_tr38901_indoor_office_topology

    common: dict[str, Any] = {
        "carrier_frequency": carrier, "ut_array": sionna_array(ue, carrier), "bs_array": sionna_array(bs, carrier),
        "direction": direction, "precision": "double", "device": "cpu",
    }  # fmt: skip
    if environment == "inh":
        model = tr38901.InH(**common)
        user, base, *rest = gen_tr38901_indoor_office_topology(count, 1, precision="double", device="cpu")
        nearest = (base[..., :2] - user[:, :1, :2]).norm(dim=2).argmin(1)
        topology = [user[:, :1], base[torch.arange(count), nearest][:, None], *(part[:, :1] for part in rest[:4])]
    else:
        extra = {} if environment == "rma" else {"o2i_model": "low"}
        model = {"umi": tr38901.UMi, "uma": tr38901.UMa, "rma": tr38901.RMa}[environment](**common, **extra)
        topology = gen_single_sector_topology(
            count, 1, environment, indoor_probability=indoor, precision="double", device="cpu"
        )
    model.set_topology(*topology, "random")
    return model
