"""The HDF5 store: what is read is what would be generated; bad files get one clear error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import chanest
from chanest.channels.store import ChannelFile, cached_channels, write_channels
from chanest.problem import ChannelProblem
from chanest.scenario import Scenario

COUNT = 40


@pytest.fixture
def scenario() -> Scenario:
    return chanest.load_scenario("cdl_e_upa64x4")


@pytest.fixture
def file(tmp_path: Path, scenario: Scenario) -> ChannelFile:
    return write_channels(tmp_path / "channels.h5", scenario.data_set("train", count=COUNT, seed=4))


def test_stored_samples_are_the_generated_ones(file: ChannelFile, scenario: Scenario) -> None:
    stored, fresh = ChannelProblem(scenario, stored=(file,)), ChannelProblem(scenario)
    a, b = (problem.sample(COUNT, seed=4, split="train", snr_db=5.0) for problem in (stored, fresh))
    assert torch.equal(a.signal, b.signal)
    assert torch.equal(a.y, b.y)
    assert a.rays is not None
    assert b.rays is not None
    assert all(torch.equal(x, y) for x, y in zip(a.rays.tensors(), b.rays.tensors(), strict=True))
    assert file.holds(range(16, 32), 4, "train")
    assert not file.holds(range(16, 32), 5, "train")
    assert not file.holds(range(32, 48), 4, "train")


def test_reading_does_not_generate(file: ChannelFile, scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ChannelProblem(scenario, stored=(file,))
    monkeypatch.setattr(type(problem.source), "draw", lambda *_: pytest.fail("channels were generated"))
    problem.sample(32, seed=4, split="train")
    with pytest.raises(pytest.fail.Exception):
        problem.sample(32, seed=5, split="train")


def test_a_second_run_finds_the_cache(scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHANEST_CACHE", str(tmp_path / "cache"))
    first = cached_channels(scenario.data_set("test", count=20))
    monkeypatch.setattr(type(scenario.source()), "draw", lambda *_: pytest.fail("channels were generated again"))
    assert cached_channels(scenario.data_set("test", count=20)) == first
    front = scenario.model_copy(update={"snr_db": (0.0, 5.0)})
    assert cached_channels(front.data_set("test", count=20)).path == first.path
    small = scenario.model_copy(update={"data": scenario.data.model_copy(update={"test": 20})})
    assert ChannelProblem(small).cached("test").stored == (first,)
    assert scenario.channel_hash() != chanest.load_scenario("cdl_d_upa64x4").channel_hash()


def test_attributes_say_what_the_file_is(file: ChannelFile) -> None:
    import h5py

    with h5py.File(file.path) as content:
        assert content["h"].dtype == "complex64"
        assert content["h"].shape == (COUNT, 4, 64)
        assert content.attrs["seed"] == 4
        assert "SNR = 1 / noise_var" in content.attrs["snr_definition"].decode()
        assert "torch" in content.attrs["versions"].decode()
        assert '"models": ["E"]' in content.attrs["scenario"].decode()


def test_no_temporary_files_are_left(file: ChannelFile) -> None:
    assert [path.name for path in file.path.parent.iterdir()] == ["channels.h5"]


def test_two_writers_of_one_file_are_refused(scenario: Scenario, tmp_path: Path) -> None:
    path, data = tmp_path / "x.h5", scenario.data_set("train", count=COUNT + 256, seed=4)
    refused = []

    def second(done: int) -> None:
        if done < data.count:
            with pytest.raises(ValueError, match=r"another run is writing .*x\.h5; wait for its end"):
                write_channels(path, data)
            refused.append(done)

    write_channels(path, data, on_progress=second)
    assert refused == [256]


def test_bad_files_get_one_clear_error(file: ChannelFile, tmp_path: Path, scenario: Scenario) -> None:
    content = file.path.read_bytes()
    for size in (100, len(content) // 2, len(content) - 10):
        short = tmp_path / "short.h5"
        short.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"short\.h5: truncated"):
            ChannelFile.open(short)
    foreign = tmp_path / "foreign.h5"
    import h5py

    with h5py.File(foreign, "w") as other:
        other["x"] = 1
    with pytest.raises(ValueError, match=r"foreign\.h5: not a file of channels"):
        ChannelFile.open(foreign)
    with pytest.raises(ValueError, match="no such file"):
        ChannelFile.open(tmp_path / "missing.h5")
    with pytest.raises(ValueError, match="another scenario"):
        ChannelProblem(chanest.load_scenario("cdl_a_upa64x4"), stored=(file,))
    with pytest.raises(ValueError, match="already holds another data set"):
        write_channels(file.path, scenario.data_set("train", count=COUNT + 1, seed=4))


def flip_a_channel(path: Path) -> None:
    """Change one bit of h[0], which HDF5 itself does not notice."""
    import h5py

    with h5py.File(path) as content:
        place = content["h"].id.get_offset()
    changed = bytearray(path.read_bytes())
    changed[place] ^= 1
    path.write_bytes(changed)


def test_a_changed_bit_is_noticed(file: ChannelFile) -> None:
    flip_a_channel(file.path)
    with pytest.raises(ValueError, match=r"channels\.h5: damaged: the checksum of samples 0 to 255 does not match"):
        ChannelFile.open(file.path).read(range(COUNT - 1, COUNT))


def test_a_chunk_that_was_damaged_before_the_end_is_generated_again(scenario: Scenario, tmp_path: Path) -> None:
    data = scenario.data_set("train", count=COUNT + 256, seed=4)

    def stop(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_channels(tmp_path / "x.h5", data, on_progress=stop)
    flip_a_channel(tmp_path / "x.h5.partial")
    found, _ = write_channels(tmp_path / "x.h5", data).read(range(data.count))
    expected, _ = data.source.sample(data.count, seed=4, split="train")
    assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", [np.bytes_, str], ids=["fixed", "variable"])
def test_a_file_of_an_earlier_format_is_refused_with_the_remedy(file: ChannelFile, kind: type) -> None:
    import h5py

    with h5py.File(file.path, "r+") as content:
        content.attrs["format"] = kind("chanest-channels-1")
    with pytest.raises(ValueError, match=r"channels\.h5: .* earlier version \(chanest-channels-1\); generate it again"):
        ChannelFile.open(file.path)
