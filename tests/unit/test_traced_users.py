"""Users of traced scenes: what is read, drawn and refused without tracing."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch

import chanest
from chanest.arrays import Sector, ula, upa
from chanest.bounds.genie import ray_columns
from chanest.channels import rt, tracing
from chanest.channels.rt import RtSource, find_users, traced_users
from chanest.channels.store import write_channels
from chanest.channels.traced import TILE, Site, TracedUsers, split_of_tile
from chanest.channels.tracing import trace
from chanest.cli import app
from vlista_core.draws import Split

TRAINED = {"rt_munich_upa64x4": (2000, 500, 1000), "rt_canyon_upa64x4": (2000, 500, 1000)}
UNSEEN = {"rt_etoile_upa64x4": (0, 0, 1000), "rt_florence_upa64x4": (0, 0, 1000)}
SITE = Site("box", ((0.0, 0.0, 5.0), (3.0, 0.0, 5.0)), (-40.0, -20.0, 40.0, 20.0), most_paths=3)


def _source(name: str) -> RtSource:
    source = chanest.load_scenario(name).source()
    assert isinstance(source, RtSource)
    return source


def _users() -> TracedUsers:
    """Five users of one to three paths, with every entry of the polarisation matrices at work."""
    draw = torch.Generator().manual_seed(4)
    counts = torch.tensor([1, 3, 2, 3, 1])
    paths = int(counts.sum())
    entries = torch.randn(paths, 2, 2, generator=draw, dtype=torch.complex64)
    user = torch.repeat_interleave(torch.arange(5), counts)
    power = torch.zeros(5).index_add(0, user, entries.abs().square().sum((1, 2)) / 2)
    delays = torch.cat([torch.sort(torch.rand(int(count), generator=draw)).values for count in counts])
    angles = torch.rand(paths, 4, generator=draw) * 3 - torch.tensor([1.5, 0.0, 1.5, 0.0])
    return TracedUsers(
        positions=torch.tensor([[float(10 + k), float(k), 1.5] for k in range(5)]), transmitter=torch.tensor([0, 1, 0, 1, 0]),
        counts=counts, gain=torch.tensor([-90.0, -95.0, -100.0, -120.0, -80.0]), delays=1e-7 * delays, angles=angles,
        matrices=entries / power[user].sqrt()[:, None, None],
    )  # fmt: skip


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> RtSource:
    users = _users().turned(SITE)
    monkeypatch.setattr(rt, "traced_users", lambda site, split, count: users)
    arrays = upa(2, 2, polarization="cross"), ula(2, polarization="VH")
    bs_sector, ue_sector = Sector(0.1, 1.0, 0.2), Sector(3.0, 2.0, -0.3)
    return RtSource(*arrays, site=SITE, test_users=5, bs_sector=bs_sector, ue_sector=ue_sector)


@pytest.mark.parametrize(("name", "counts"), [*TRAINED.items(), *UNSEEN.items()])
def test_shipped_users_are_as_many_as_promised_and_need_no_tracer(name: str, counts: tuple[int, ...]) -> None:
    source = _source(name)
    for split, count in zip(get_args(Split), counts, strict=True):
        assert source.count(split) == count
        if count:
            path = find_users(source.site, split, count)
            assert path.parent.name == "scenes"
            assert path.stat().st_size < 1.5e6
            users = TracedUsers.read(path)
            assert len(users) == count
            assert 1 <= int(users.counts.min()) <= int(users.counts.max()) <= 25
            power = users.matrices.abs().square().sum((1, 2)) / 2
            user = torch.repeat_interleave(torch.arange(count), users.counts)
            total = torch.zeros(count).index_add(0, user, power)
            torch.testing.assert_close(total, torch.ones(count), atol=2e-3, rtol=0)


@pytest.mark.parametrize("name", TRAINED)
def test_training_and_test_users_stand_on_different_tiles(name: str) -> None:
    source = _source(name)
    tiles = {}
    for split in source.splits:
        users = traced_users(source.site, split, source.count(split))
        tiles[split] = {(int(x // TILE), int(y // TILE)) for x, y, _ in users.positions.double().tolist()}
    assert not tiles["train"] & tiles["test"]
    assert not tiles["train"] & tiles["validation"]
    assert not tiles["validation"] & tiles["test"]


def test_tiles_are_shared_out_as_said() -> None:
    found = [split_of_tile(TILE * x + 1, TILE * y + 1, 0) for x in range(-50, 50) for y in range(-50, 50)]
    for split, share in zip(get_args(Split), (0.6, 0.15, 0.25), strict=True):
        assert abs(found.count(split) / len(found) - share) < 0.02


def test_positions_depend_on_seed_split_and_index_alone() -> None:
    whole = SITE.candidates(range(20), "test")
    part = SITE.candidates(range(7, 9), "test")
    for one, other in zip(whole, part, strict=True):
        assert torch.equal(one[7:9], other)
    assert not torch.equal(SITE.candidates(range(20), "train")[0], whole[0])
    assert not torch.equal(replace(SITE, seed=1).candidates(range(20), "test")[0], whole[0])
    low, high = torch.tensor(SITE.area).split(2)
    assert bool(((whole[0][:, :2] >= low) & (whole[0][:, :2] <= high)).all())


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    users = _users()
    users.write(tmp_path / "users.safetensors", SITE, "test")
    found = TracedUsers.read(tmp_path / "users.safetensors")
    for name in ("positions", "transmitter", "counts", "gain", "delays", "angles"):
        assert torch.equal(getattr(found, name), getattr(users, name))
    torch.testing.assert_close(found.matrices, users.matrices, atol=1e-3, rtol=1e-3)
    places, real = found.places(torch.tensor([2, 0]), 3)
    assert real.tolist() == [[True, True, False], [True, False, False]]
    assert places.tolist() == [[4, 5, 5], [0, 0, 0]]


def test_samples_take_users_in_turn_and_differ_in_orientation_and_phases(source: RtSource) -> None:
    rays = source.rays(range(10), seed=0)
    assert torch.equal(rays.powers[:5], rays.powers[5:])
    assert not torch.isclose(rays.tx_orientation[:5, 0], rays.tx_orientation[5:, 0]).any()
    assert not torch.isclose(rays.phases[:5], rays.phases[5:]).any()
    torch.testing.assert_close(rays.powers.sum(1), torch.ones(10))
    kept = replace(source, normalisation="ensemble").rays(range(5), seed=0).powers.sum(1)
    torch.testing.assert_close(10 * torch.log10(kept), _users().gain)


def test_the_base_station_sees_the_direct_path_at_azimuth_zero() -> None:
    """The strongest path of users far from the base station, where it is the line of sight."""
    source = _source("rt_canyon_upa64x4")
    users = traced_users(source.site, "test", 1000)
    rays = source.rays(range(1000), seed=0)
    base = torch.tensor(source.site.transmitters[0])
    away = users.positions - base
    direct = torch.acos(away[:, 2] / away.norm(dim=1))
    first = (rays.zod[:, 0, 0] - direct).abs() < 1e-4
    assert int(first.sum()) > 100
    torch.testing.assert_close(rays.aod[first, 0, 0], torch.zeros(int(first.sum())), atol=1e-4, rtol=0)
    torch.testing.assert_close(
        rays.aoa[first, 0, 0].abs(), torch.full((int(first.sum()),), torch.pi), atol=1e-4, rtol=0
    )


def test_the_uplink_is_the_transpose(source: RtSource) -> None:
    down, up = source.rays(range(5), seed=1), replace(source, direction="uplink").rays(range(5), seed=1)
    one = source.factors(down).narrowband()
    other = replace(source, direction="uplink").factors(up).narrowband()
    torch.testing.assert_close(one, other.mT)


def test_the_genie_knows_a_path_but_for_one_phase(source: RtSource) -> None:
    """R of what it is told is the mean of hhᴴ over phases: over three phases a third of a turn apart cross terms go."""
    rays = source.rays(range(5), seed=3)
    columns = ray_columns(source, rays).space
    expected = columns @ columns.mH
    total = torch.zeros_like(expected)
    thirds = torch.cartesian_prod(*[torch.arange(3.0)] * 3) * 2 * torch.pi / 3
    for turns in thirds:
        turned = replace(rays, phases=rays.phases + turns[: rays.phases.shape[1], None, None])
        h = source.matrices(turned).mT.flatten(1).to(total.dtype)
        total += h[:, :, None] * h.conj()[:, None, :]
    torch.testing.assert_close(total / len(thirds), expected, atol=1e-5, rtol=1e-5)


def test_what_is_not_shipped_names_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHANEST_CACHE", str(tmp_path))
    monkeypatch.setattr(rt, "can_trace", lambda: False)
    site = _source("rt_munich_upa64x4").site
    with pytest.raises(ValueError, match=r"5000 train users of the scene munich .* pip install 'vlista\[rt\]'"):
        find_users(site, "train", 5000)
    with pytest.raises(ValueError, match="have to be traced"):
        find_users(replace(site, depth=2), "test", 10)


def test_users_of_the_cache_are_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHANEST_CACHE", str(tmp_path))
    path = tmp_path / f"{SITE.name()}-test.safetensors"
    _users().write(path, SITE, "test")
    assert find_users(SITE, "test", 5) == path
    assert len(traced_users(SITE, "test", 4)) == 4


def test_channels_of_every_split_go_into_a_file(tmp_path: Path) -> None:
    """All splits have rays of one shape, whatever paths their users have."""
    scenario = chanest.load_scenario("rt_canyon_upa64x4")
    for split in get_args(Split):
        file = write_channels(tmp_path / f"{split}.h5", scenario.data_set(split, count=40))
        h, rays = file.read(range(40))
        again, same = scenario.source().sample(40, seed=0, split=split)
        assert torch.equal(h, again)
        assert rays is not None
        assert same is not None
        assert torch.equal(rays.phases, same.phases)


def test_a_scene_for_tests_refuses_training() -> None:
    source = _source("rt_florence_upa64x4")
    assert source.splits == ("test",)
    with pytest.raises(ValueError, match="the users of florence are for test only, not for train"):
        source.rays(range(2), seed=0, split="train")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"area": [10.0, 0.0, 0.0, 5.0]}, "area must be"),
        ({"test_users": 0, "train_users": 0, "validation_users": 0}, "must be positive"),
        ({"fewest_paths": 30}, "fewest_paths must be at most most_paths = 25"),
        ({"scene": "../munich"}, "scene"),
        ({"transmitters": []}, "transmitters"),
    ],
)
def test_bad_keys_are_named(change: dict[str, object], message: str) -> None:
    content = chanest.load_scenario("rt_munich_upa64x4").model_dump()
    with pytest.raises(ValueError, match=message):
        chanest.Scenario.model_validate({**content, "channel": {**content["channel"], **change}})


def test_nothing_is_traced_for_a_scenario_without_users(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        app(["trace", "cdl_c_upa64x4"])
    assert "has no channel of kind rt" in capsys.readouterr().err


def _tracer(folder: Path, body: str, version: int = 19) -> None:
    """A sionna.rt and a drjit that behave as told."""
    for path, content in {
        "sionna/rt/__init__.py": body,
        "drjit/__init__.py": f"class detail:\n    llvm_version = staticmethod(lambda: ({version}, 0, 0))\n",
    }.items():
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(content)


@pytest.mark.parametrize(
    ("body", "version", "message"),
    [
        ("raise ImportError('the LLVM backend is inactive')", 19, "found no LLVM that it can use; install LLVM 19"),
        ("raise ImportError('no module named mitsuba')", 19, r"no module named mitsuba; install .*'vlista\[rt\]'"),
        ("", 15, "LLVM 15 was found, with which Sionna RT ends in a crash; install LLVM 19"),
        ("import os; os.abort()", 19, "does not fit Sionna RT; install LLVM 19"),
        (
            "from types import SimpleNamespace\nscene = SimpleNamespace(munich='munich.xml')",
            19,
            "must be one of munich, got",
        ),
    ],
    ids=["no LLVM", "no Mitsuba", "old LLVM", "crash", "unknown scene"],
)
@pytest.mark.skipif(os.name != "posix", reason="a crash has another code on Windows")
@pytest.mark.skipif(tracing.can_trace(), reason="the true sionna-rt would be found before the one made up here")
def test_a_tracer_that_cannot_run_gives_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, version: int, message: str
) -> None:
    _tracer(tmp_path, body, version)
    monkeypatch.setattr(tracing, "can_trace", lambda: True)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with pytest.raises(ValueError, match=message) as fault:
        trace(SITE, "test", 3, tmp_path / "users.safetensors")
    assert "\n" not in str(fault.value)
    assert not (tmp_path / "users.safetensors").exists()
    assert "sionna.rt" not in sys.modules


def test_without_sionna_rt_tracing_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "can_trace", lambda: False)
    with pytest.raises(ValueError, match=r"needs sionna-rt, which is not installed; .*'vlista\[rt\]'"):
        trace(SITE, "test", 3, tmp_path / "users.safetensors")
