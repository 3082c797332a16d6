"""Channels of a user's own: every format gives the same channels, splits share none, bad files get one sentence."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import h5py
import numpy as np
import pytest
import scipy.io
import torch
from numpy.typing import NDArray

import chanest
from chanest.arrays import upa
from chanest.channels.file import FileSource
from chanest.fit import Fit
from chanest.plotting.channel import draw_channel
from chanest.problem import ChannelProblem
from chanest.scenario import Scenario, load_scenario
from chanest.studies.accuracy import AccuracyStudy
from chanest.weights.training import train_estimator
from vlista_core.draws import Split

COUNT, RECEIVE, TRANSMIT, SUBCARRIERS = 200, 2, 6, 3
BS, UE = upa(2, 3), upa(1, 2)
Write = Callable[[Path, NDArray[Any]], object]
SPLITS: tuple[Split, ...] = get_args(Split)


def _channels(*, subcarriers: int = 0) -> NDArray[np.complex64]:
    """[sample, receive, transmit], or with subcarriers last, as DeepMIMO has them."""
    shape = (COUNT, RECEIVE, TRANSMIT, *([subcarriers] if subcarriers else []))
    parts = np.random.default_rng(0).normal(size=(2, *shape))
    return np.asarray(3e-6 * (parts[0] + 1j * parts[1]), np.complex64)


def _matlab_73(path: Path, name: str, values: NDArray[Any]) -> None:
    """As MATLAB writes version 7.3: a header of 512 bytes, reversed axes, pairs of named parts."""
    pairs = np.empty(values.T.shape, [("real", "<f4"), ("imag", "<f4")])
    pairs["real"], pairs["imag"] = values.T.real, values.T.imag
    with h5py.File(path, "w", userblock_size=512) as file:
        file[name] = pairs
    _header(path)


def _header(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")


def _hdf5(path: Path, values: NDArray[Any]) -> None:
    with h5py.File(path, "w") as file:
        file["site/h"] = values


FORMATS: dict[str, tuple[str, dict[str, str], Write]] = {
    "npy": ("a.npy", {}, lambda path, values: np.save(path, values)),
    "npz": ("a.npz", {"key": "h"}, lambda path, values: np.savez(path, h=values, other=np.ones(2))),
    "npz, only one": ("a.npz", {}, lambda path, values: np.savez_compressed(path, h=values)),
    "mat v5": ("a.mat", {"key": "h"}, lambda path, values: scipy.io.savemat(path, {"h": values, "fc": 28e9})),
    "mat v7.3": ("a.mat", {"key": "h"}, lambda path, values: _matlab_73(path, "h", values)),
    "hdf5": ("a.h5", {"key": "site/h"}, _hdf5),
    "another name": ("a.dat", {}, lambda path, values: _hdf5(path, values)),
}


def _source(problem: ChannelProblem) -> FileSource:
    assert isinstance(problem.source, FileSource)
    return problem.source


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_same_channels(kind: str, tmp_path: Path) -> None:
    name, options, write = FORMATS[kind]
    write(tmp_path / name, _channels())
    problem = chanest.own_channels(tmp_path / name, bs=BS, ue=UE, pilots=4, **options)  # type: ignore[arg-type]
    np.save(tmp_path / "plain.npy", _channels())
    expected = chanest.own_channels(tmp_path / "plain.npy", bs=BS, ue=UE, pilots=4)
    for split in SPLITS:
        found, known = (each.channels(20, seed=3, split=split) for each in (problem, expected))
        torch.testing.assert_close(found, known)
    assert problem.sample(4, seed=0).rays is None


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_the_channels_are_those_of_the_file_over_one_constant(tmp_path: Path, dtype: type) -> None:
    values: NDArray[Any] = _channels().astype(dtype)
    np.save(tmp_path / "a.npy", values)
    source = _source(chanest.own_channels(tmp_path / "a.npy", bs=BS, ue=UE, pilots=4))
    every = values * source.scale
    test = source.sample(source.available("test"), seed=0)[0].numpy()
    places = [int(np.abs(every - one).sum((1, 2)).argmin()) for one in test]
    assert places == sorted(places)
    assert len(set(places)) == len(places)
    np.testing.assert_allclose(test, every[places], rtol=1e-5)
    assert float(np.mean(np.abs(every) ** 2)) == pytest.approx(1.0, rel=0.05)


def test_splits_share_no_channel_and_have_their_shares(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(1, 3001).reshape(3000, 1, 1) * (1 + 1j))
    one = upa(1, 1)
    source = _source(chanest.own_channels(tmp_path / "a.npy", bs=one, ue=one, pilots=1))
    sizes = {split: source.available(split) for split in SPLITS}
    assert sum(sizes.values()) == 3000
    assert sizes["test"] == pytest.approx(300, abs=60)
    drawn = {split: source.sample(9000, seed=1, split=split)[0].flatten() for split in SPLITS}
    held = {split: set((values.abs() / source.scale).round().tolist()) for split, values in drawn.items()}
    assert not held["train"] & held["test"]
    assert not held["train"] & held["validation"]
    assert len(held["test"]) == sizes["test"]
    assert len(held["train"]) > 0.9 * sizes["train"]


def test_test_channels_come_in_order_again_and_training_ones_by_seed(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", _channels())
    source = _source(chanest.own_channels(tmp_path / "a.npy", bs=BS, ue=UE, pilots=4))
    size = source.available("test")
    first, again = source.sample(5, seed=0)[0], source.sample(5, seed=9, start=size)[0]
    assert torch.equal(first, again)
    train = [source.sample(32, seed=seed, split="train")[0] for seed in (1, 1, 2)]
    assert torch.equal(train[0], train[1])
    assert not torch.equal(train[0], train[2])


def test_axes_in_any_order_and_real_pairs(tmp_path: Path) -> None:
    values = _channels(subcarriers=SUBCARRIERS)
    moved = np.moveaxis(values, (0, 3, 1, 2), (1, 0, 3, 2))
    np.save(tmp_path / "a.npy", np.stack([moved.real, moved.imag], -1))
    axes = ("subcarrier", "sample", "transmit", "receive", "parts")
    problem = chanest.own_channels(tmp_path / "a.npy", bs=BS, ue=UE, pilots=4, axes=axes)  # type: ignore[arg-type]
    assert problem.subcarriers == SUBCARRIERS
    h = problem.source.sample(1, seed=0)[0][0].numpy() / problem.source.scale
    number = int(np.abs(values[:, :, :, 1] - h[1]).sum((1, 2)).argmin())
    np.testing.assert_allclose(h, np.moveaxis(values[number], 2, 0), rtol=1e-5)


def _rows_to_columns(array_rows: int, array_columns: int) -> list[int]:
    """Written out: the element at the top of the first column is the first of the last row, and so on."""
    return [
        (array_rows - 1 - row) * array_columns + column for column in range(array_columns) for row in range(array_rows)
    ]


@pytest.mark.parametrize("kind", ["v4 npz", "v4 mat", "matlab v5", "matlab v7.3"])
def test_what_deepmimo_saves_is_read(kind: str, tmp_path: Path) -> None:
    values, path = _channels(subcarriers=SUBCARRIERS), tmp_path / ("a.npz" if kind == "v4 npz" else "a.mat")
    if kind == "v4 npz":
        np.savez_compressed(path, channel=values)
    elif kind == "v4 mat":
        scipy.io.savemat(path, {"channel": values})
    elif kind == "matlab v5":
        _deepmimo_cells(path, values)
    else:
        _deepmimo_references(path, values)
    content = _file_scenario(path, layout="deepmimo")
    if kind.startswith("matlab"):
        content["channel"]["base_station"] = 1
    source = _source(ChannelProblem(Scenario.model_validate(content)))
    assert source.stored.shape == values.shape
    h = source.sample(1, seed=0)[0][0].numpy() / source.scale
    turned = values[:, :, _rows_to_columns(2, 3)]
    number = int(np.abs(turned[..., 0] - h[0]).sum((1, 2)).argmin())
    np.testing.assert_allclose(h, np.moveaxis(turned[number], 2, 0), rtol=1e-5)


def _cell(entries: list[Any]) -> NDArray[np.object_]:
    cell = np.empty((1, len(entries)), object)
    cell[0, :] = entries
    return cell


def _deepmimo_cells(path: Path, values: NDArray[Any]) -> None:
    """DeepMIMO_dataset{bs}.user{u}.channel, of two base stations."""
    users = _cell([{"channel": one, "loc": np.zeros(3)} for one in values])
    stations = [{"user": _cell([{"channel": 0 * values[0]}]), "loc": np.zeros(3)}, {"user": users, "loc": np.ones(3)}]
    scipy.io.savemat(path, {"DeepMIMO_dataset": _cell(stations)})


def _deepmimo_references(path: Path, values: NDArray[Any]) -> None:
    """The same as MATLAB writes it in version 7.3: cells are references into #refs#."""
    with h5py.File(path, "w", userblock_size=512) as file:
        stations = []
        for number, held in enumerate((0 * values[:1], values)):
            station = file.create_group(f"#refs#/bs{number}")
            users = []
            for place, one in enumerate(held):
                user = file.create_group(f"#refs#/bs{number}user{place}")
                pairs = np.empty(one.T.shape, [("real", "<f4"), ("imag", "<f4")])
                pairs["real"], pairs["imag"] = one.T.real, one.T.imag
                user["channel"] = pairs
                users.append(user.ref)
            station.create_dataset("user", (len(users), 1), h5py.ref_dtype)[:, 0] = users
            stations.append(station.ref)
        file.create_dataset("DeepMIMO_dataset", (2, 1), h5py.ref_dtype)[:, 0] = stations
    _header(path)


def _file_scenario(path: Path, **channel: object) -> dict[str, Any]:
    return {
        "name": "own",
        "bs": {"rows": 2, "columns": 3},
        "ue": {"rows": 1, "columns": 2},
        "channel": {"kind": "file", "path": str(path), **channel},
        "frontend": {"pilots": 4},
    }


def test_every_sample_can_have_unit_power(tmp_path: Path) -> None:
    """Path loss of 100 dB is taken out."""
    np.save(tmp_path / "a.npy", _channels() * np.logspace(0, -5, COUNT)[:, None, None])
    problem = chanest.own_channels(tmp_path / "a.npy", bs=BS, ue=UE, pilots=4, normalisation="sample")
    power = problem.channels(20, seed=0).abs().square().mean(1)
    torch.testing.assert_close(power, torch.ones(20))


def test_an_array_in_memory_is_kept_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHANEST_CACHE", str(tmp_path / "cache"))
    first = chanest.own_channels(_channels(), bs=BS, ue=UE, pilots=4)
    again = chanest.own_channels(torch.from_numpy(_channels()), bs=BS, ue=UE, pilots=4)
    assert first.scenario == again.scenario
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_weights_belong_to_what_the_file_holds_not_to_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHANEST_WEIGHTS", str(tmp_path / "weights"))
    (tmp_path / "moved").mkdir()
    for folder, factor in ((tmp_path, 1.0), (tmp_path / "moved", 1.0)):
        np.save(folder / "site.npy", factor * _channels())
    here, moved = (
        chanest.own_channels(folder / "site.npy", bs=BS, ue=UE, pilots=4) for folder in (tmp_path, tmp_path / "moved")
    )
    assert here.scenario.channel_hash() == moved.scenario.channel_hash()
    train_estimator("lmmse", here, Fit(steps=2))
    batch = moved.sample(8, seed=0, snr_db=10.0)
    assert chanest.get_estimator("lmmse", moved).nmse_db(batch) < 3.0
    np.save(tmp_path / "site.npy", 2.0 * _channels()[::-1])
    other = chanest.own_channels(tmp_path / "site.npy", bs=BS, ue=UE, pilots=4)
    with pytest.raises(ValueError, match="holds weights of the channels of site"):
        chanest.get_estimator("lmmse", other)


def test_what_learns_from_rays_says_that_there_are_none() -> None:
    problem = ChannelProblem(load_scenario("file_16x2"))
    with pytest.raises(ValueError, match="file_16x2 brings channels of its own, whose rays nobody knows"):
        problem.rays(range(2), seed=0, split="train")


def test_a_study_does_not_count_a_channel_twice() -> None:
    scenario = load_scenario("file_16x2")
    with pytest.raises(ValueError, match=r"channels must be at most \d+, the test channels of file_16x2, got 1000"):
        AccuracyStudy(scenario=scenario, estimators=("ls",)).check()
    AccuracyStudy(scenario=scenario, estimators=("ls",), channels=50).check()


def test_a_channel_without_rays_is_drawn(tmp_path: Path) -> None:
    draw_channel(ChannelProblem(load_scenario("file_16x2")), tmp_path / "a.png", seed=0)
    assert (tmp_path / "a.png").stat().st_size > 10_000


def _bad(change: Callable[[NDArray[np.complex64]], NDArray[Any]]) -> Write:
    return lambda path, _: np.save(path, change(_channels()))


def _with(place: tuple[int | slice, ...], value: complex) -> Callable[[NDArray[np.complex64]], NDArray[Any]]:
    def change(values: NDArray[np.complex64]) -> NDArray[Any]:
        values[place] = value
        return values

    return change


BAD: dict[str, tuple[Write, dict[str, Any], str]] = {
    "nan": (_bad(_with((slice(None), 0, 0), complex("nan"))), {}, r"channel \d+ has entries that are not finite"),
    "one axis too many": (_bad(lambda h: h[..., None]), {}, r"axes must name the 4 axes of the array, of sizes \[200, 2"),
    "swapped": (_bad(lambda h: h.swapaxes(1, 2)), {}, "axis receive must have 2 entries, the antennas of the receiver, got 6"),
    "fewer antennas": (_bad(lambda h: h[..., :5]), {}, "axis transmit must have 6 entries, .* got 5"),
    "no power": (_bad(lambda h: 0 * h), {}, "there is no power in the 158 training channels"),
    "no power in a sample": (_bad(lambda h: 0 * h), {"normalisation": "sample"}, "channel 3 has no power to normalise by"),
    "few": (_bad(lambda h: h[:3]), {}, "too few channels: of 3, none is for "),
    "real": (_bad(lambda h: h.real), {}, r"must hold complex numbers, or real ones with an axis of 2 named parts, got real"),
    "text": (_bad(lambda h: np.full((200, 2, 6), "a")), {}, "must hold numbers, got <U1"),
    "objects": (lambda path, h: np.save(path, np.array([{}], object)), {}, "truncated, damaged or of another kind"),
    "empty": (lambda path, h: path.write_bytes(b""), {}, "not a file of channels: it must be"),
    "cut": (lambda path, h: _cut(path), {}, "truncated, damaged or of another kind"),
    "missing": (lambda path, h: None, {}, "no such file of channels"),
    "axes": (_bad(lambda h: h), {"axes": ("sample", "receive")}, "axes must name sample, receive, transmit, and may name"),
    "an axis unknown": (_bad(lambda h: h), {"axes": ("sample", "receive", "beam")}, "'sample', 'subcarrier', 'receive'"),
}  # fmt: skip


def _cut(path: Path) -> None:
    np.save(path, _channels())
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_a_bad_file_gets_one_sentence(case: tuple[Write, dict[str, Any], str], tmp_path: Path) -> None:
    write, options, said = case
    write(tmp_path / "a.npy", _channels())
    with pytest.raises(ValueError, match=said) as caught:
        chanest.own_channels(tmp_path / "a.npy", bs=BS, ue=UE, pilots=4, **options).sample(4, seed=0)
    assert "\n" not in str(caught.value)


def test_a_key_that_is_missing_is_said_with_those_there_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", h=_channels(), g=_channels())
    for key, said in (
        ("x", "there is no array 'x'; the file holds g, h"),
        ("", "key must say which array to take; .*g, h"),
    ):
        with pytest.raises(ValueError, match=said):
            chanest.own_channels(tmp_path / "a.npz", bs=BS, ue=UE, pilots=4, key=key)


def test_a_scenario_file_names_its_channels_from_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    np.save(tmp_path / "site" / "h.npy", _channels())
    arrays = "[bs]\nrows = 2\ncolumns = 3\n[ue]\nrows = 1\ncolumns = 2\n"
    text = arrays + '[channel]\nkind = "file"\npath = "{}"\n[frontend]\npilots = 4\n'
    (tmp_path / "site" / "mine.toml").write_text(text.format("h.npy"))
    monkeypatch.chdir(tmp_path)
    assert load_scenario("site/mine.toml").source().available("test") == 20
    (tmp_path / "site" / "bad.toml").write_text(text.format("none.npy"))
    with pytest.raises(ValueError, match=r"bad\.toml: .*none\.npy: no such file of channels"):
        load_scenario("site/bad.toml")


def test_a_large_file_is_mapped_not_read(tmp_path: Path) -> None:
    """Of 126 MB, next to nothing is held."""
    values = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.complex64, (2**17, RECEIVE, 10 * TRANSMIT))
    values[:1000] = 1.0
    del values
    tracemalloc.start()
    problem = chanest.own_channels(tmp_path / "a.npy", bs=upa(6, 10), ue=UE, pilots=4)
    assert problem.source.available("test") == pytest.approx(2**17 / 10, rel=0.05)
    assert problem.channels(4, seed=0).isfinite().all()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6
