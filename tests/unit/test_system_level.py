"""Cells of TR 38.901 as sources: draws, state, normalisation and keys. That they are Sionna's is in tests/golden."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import chanest
from chanest.arrays import ula, upa
from chanest.channels.sionna_backend import global_state_kept
from chanest.channels.system_level import Environment, SystemLevelSource

UMI = SystemLevelSource(upa(2, 2), ula(2))


def test_rays_do_not_depend_on_who_else_is_asked_for() -> None:
    whole = UMI.rays(range(40), seed=2)
    for chosen in ([5], [17, 3], [39, 16, 0, 15]):
        some = UMI.rays(chosen, seed=2)
        for one, other in zip(whole.select(torch.tensor(chosen)).tensors(), some.tensors(), strict=True):
            assert torch.equal(one, other)


def test_drawing_leaves_all_generators_alone() -> None:
    with global_state_kept():
        from sionna.phy import config
    UMI.rays(range(16), seed=11)
    generator = config.torch_rng("cpu")
    states = generator.get_state(), torch.get_rng_state(), _numpy_state(), random.getstate()
    dtype = torch.get_default_dtype()
    UMI.rays(range(16), seed=12)
    assert torch.equal(states[0], generator.get_state())
    assert torch.equal(states[1], torch.get_rng_state())
    assert states[2] == _numpy_state()
    assert states[3] == random.getstate()
    assert torch.get_default_dtype() == dtype


def _numpy_state() -> list[int]:
    """Of the global generator."""
    state: Any = np.random.get_state()  # noqa: NPY002
    return [*state[1], state[2]]


def test_snapshots_of_a_user_share_its_rays_and_move() -> None:
    moving = replace(UMI, snapshots=3, snapshot_interval=1e-3, speed=(10.0, 10.0))
    rays = moving.rays(range(6), seed=0)
    assert torch.equal(rays.aoa[0], rays.aoa[2])
    assert not torch.equal(rays.aoa[0], rays.aoa[3])
    torch.testing.assert_close(rays.time, torch.tensor([0.0, 1e-3, 2e-3] * 2))
    torch.testing.assert_close(rays.velocity.norm(dim=1), torch.full((6,), 10.0))


def test_users_lie_straight_ahead_of_the_base_station() -> None:
    """The line of sight leaves at azimuth zero and arrives from the opposite direction; indoors there is none."""
    rays = replace(UMI, indoor=0.0, line_of_sight="always").rays(range(32), seed=1)
    assert bool((rays.k_factor > 0).all())
    aoa, aod, zoa, zod = rays.los_angles.T
    torch.testing.assert_close(aod, torch.zeros(32), atol=1e-5, rtol=0)
    torch.testing.assert_close(aoa.abs(), torch.full((32,), math.pi), atol=1e-5, rtol=0)
    torch.testing.assert_close(zoa + zod, torch.full((32,), math.pi))
    assert not bool((replace(UMI, indoor=1.0).rays(range(32), seed=1).k_factor > 0).any())


@pytest.mark.parametrize("environment", ["umi", "inh"])
def test_the_ensemble_keeps_what_users_differ_by(environment: Environment) -> None:
    """Powers are in the ratio of path loss and shadowing, in line of sight or not, and one in the mean."""
    source = SystemLevelSource(ula(1), ula(1), environment=environment, normalisation="ensemble")
    rays = source.rays(range(64), seed=3)
    drop = source.drop(range(64), seed=3)
    power = (rays.powers.double().sum(1) + rays.k_factor.double()) / (1 + rays.k_factor.double())
    share = (drop.powers.sum(1) + drop.k_factor) / (1 + drop.k_factor)
    torch.testing.assert_close(power / power[0], drop.gain * share / (drop.gain * share)[0], rtol=1e-4, atol=0)
    assert float(10 * (power.max() / power.min()).log10()) > 20
    plain = replace(source, normalisation="sample").rays(range(64), seed=3)
    torch.testing.assert_close(plain.powers.sum(1), torch.ones(64))


def test_parts_of_strong_clusters_have_their_power() -> None:
    wide = replace(UMI, frequencies=(0.0, 1e6))
    rays, whole = wide.rays(range(16), seed=5), UMI.rays(range(16), seed=5)
    assert rays.powers.shape[1] == whole.powers.shape[1] + 4
    torch.testing.assert_close(rays.powers.sum(1), torch.ones(16))
    assert bool((rays.delays.diff(dim=1) >= 0).all())
    torch.testing.assert_close((rays.strength[..., 0] ** 2).mean(2), torch.ones(rays.powers.shape))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "rma", "carrier": 60e9}, "carrier must be at most 30e9 for rma"),
        ({"kind": "inh", "indoor": 0.5}, "indoor must be left out for inh"),
        ({"speed": (3.0, 1.0)}, "speed must be"),
        ({"kind": "uma", "line_of_sight": "maybe"}, "line_of_sight"),
    ],
)
def test_bad_keys_are_named(change: dict[str, object], message: str) -> None:
    content = chanest.load_scenario("umi_upa64x4").model_dump()
    with pytest.raises(ValueError, match=message):
        chanest.Scenario.model_validate({**content, "channel": {**content["channel"], **change}})
