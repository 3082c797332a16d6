"""Traced paths in our factored form are the channels of Sionna RT's own synthetic arrays."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from chanest.arrays import Array, Sector, ula, upa
from chanest.channels import rt as rt_source
from chanest.channels.rt import RtSource
from chanest.channels.sionna_backend import global_state_kept
from chanest.channels.source import Direction
from chanest.channels.traced import Site, TracedUsers
from chanest.channels.tracing import can_trace, trace, traced

SITE = Site(
    "simple_street_canyon", ((-33.0, 11.0, 32.0), (20.0, 2.0, 15.0)), (-60.0, -8.0, 60.0, 8.0), depth=5, samples=100_000,
    split_by="draw", most_paths=40,
)  # fmt: skip
USERS = 6
FREQUENCIES = tuple(2e6 * k for k in range(-4, 4))
PAIRS: dict[str, tuple[Array, Array, Direction]] = {
    "single polarisation": (upa(4, 2), ula(2), "downlink"),
    "dual polarisation": (upa(2, 2, polarization="cross"), ula(2, polarization="VH"), "downlink"),
    "element pattern, uplink": (upa(2, 3, polarization="VH", pattern="38.901"), ula(2, polarization="H"), "uplink"),
}


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> TracedUsers:
    """Traced in a process of its own first, so that a library that does not fit ends that one."""
    if not can_trace():
        pytest.skip("sionna-rt is not installed: pip install 'vlista[rt]'")
    path: Path = tmp_path_factory.mktemp("traced") / "users.safetensors"
    try:
        trace(SITE, "test", USERS, path)
    except ValueError as fault:
        pytest.skip(str(fault))
    with global_state_kept():
        found = traced(SITE, "test", USERS)
    kept = TracedUsers.read(path)
    assert torch.equal(found.counts, kept.counts)
    assert torch.equal(found.angles, kept.angles)
    torch.testing.assert_close(found.matrices, kept.matrices, rtol=1e-3, atol=1e-3)
    return found


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
def test_channels_are_those_of_sionnas_synthetic_arrays(
    users: TracedUsers, pair: tuple[Array, Array, Direction], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To 1e-4 of each channel, with both ends turned and tilted, path loss kept and over 16 MHz."""
    monkeypatch.setattr(rt_source, "traced_users", lambda site, split, count: users.turned(SITE))
    bs, ue, direction = pair
    source = RtSource(
        bs, ue, SITE.carrier, direction, FREQUENCIES, site=SITE, test_users=USERS, normalisation="ensemble",
        bs_sector=Sector(0.3, 1.0, 0.2, 0.1), ue_sector=Sector(2.0, 3.0, -0.3, 0.2),
    )  # fmt: skip
    rays = source.rays(range(USERS), seed=2)
    entries = users.matrices[users.places(torch.arange(USERS), SITE.most_paths)[0]]
    entries = entries if direction == "downlink" else entries.mT
    still = replace(rays, phases=entries.flatten(2).angle()[:, :, None])
    taps = source.factors(still).taps()
    ours = (source.delay_response(still).to(taps.dtype) @ taps.flatten(2)).reshape(USERS, *source.shape)
    theirs = torch.stack(
        [_sionnas(source, users, user, rays.tx_orientation, rays.rx_orientation) for user in range(USERS)]
    )
    error = (ours - theirs).flatten(1).norm(dim=1) / theirs.flatten(1).norm(dim=1)
    assert float(error.max()) < 1e-4


def _sionnas(source: RtSource, users: TracedUsers, user: int, tx_turn: Tensor, rx_turn: Tensor) -> Tensor:
    """The frequency response of one user with Sionna's arrays: [f, N_r, N_t]."""
    base, user_turn = (tx_turn, rx_turn) if source.direction == "downlink" else (rx_turn, tx_turn)
    place = SITE.transmitters[int(users.transmitter[user])]
    away = users.positions[user] - torch.tensor(place)
    bearing = torch.atan2(away[1], away[0])
    with global_state_kept():
        import sionna.rt as rt

        scene = rt.load_scene(rt.scene.simple_street_canyon)
        scene.frequency = SITE.carrier
        scene.tx_array, scene.rx_array = _array(rt, source.bs), _array(rt, source.ue)
        for kind, name, where, turn in (
            (rt.Transmitter, "base", list(place), base[user]),
            (rt.Receiver, "user", users.positions[user].tolist(), user_turn[user]),
        ):
            orientation = [float(turn[0] + bearing), float(turn[1]), float(turn[2])]
            scene.add(kind(name, position=where, orientation=orientation))
        paths = rt.PathSolver(deterministic=True)(
            scene, max_depth=SITE.depth, samples_per_src=SITE.samples, refraction=False,
            synthetic_array=True, seed=SITE.seed + 1,
        )  # fmt: skip
        h = torch.complex(*(part.torch().cpu() for part in paths.a))[0, :, 0].to(torch.complex128)
        delays = paths.tau.torch().cpu()[0, 0].double()
        valid = paths.valid.torch().cpu()[0, 0]
    delays = delays - delays[valid].min()
    turns = torch.exp(-2j * math.pi * torch.tensor(FREQUENCIES, dtype=torch.float64)[:, None] * delays) * valid
    response = torch.einsum("rtp,fp->frt", h, turns)
    return response if source.direction == "downlink" else response.mT


def _array(rt: Any, array: Array) -> Any:
    return rt.PlanarArray(
        num_rows=array.rows, num_cols=array.columns, vertical_spacing=array.vertical_spacing,
        horizontal_spacing=array.horizontal_spacing, polarization=array.polarization,
        pattern={"omni": "iso", "38.901": "tr38901"}[array.pattern],
    )  # fmt: skip
