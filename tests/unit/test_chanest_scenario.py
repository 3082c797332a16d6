"""Scenario files: bad ones get one message with file, key, value and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

import chanest

GOOD = """
snr_db = [0.0, 10.0]
[bs]
rows = 2
columns = 4
[ue]
rows = 1
columns = 2
[frontend]
pilots = 6
chains = 1
"""

BAD = {
    "unknown key": (GOOD + "color = 3\n", ["frontend.color = 3", "unknown key; allowed are beams, bits, chains"]),
    "negative count": (GOOD + "[data]\ntrain = -5\n", ["data.train = -5", "greater than or equal to 1"]),
    "chains": (GOOD.replace("chains = 1", "chains = 3"), ["frontend.chains", "at most 2", "got 3"]),
    "snr": (GOOD.replace("[0.0, 10.0]", "[10.0, 0.0]"), ["snr_db", "lowest <= highest", "[10.0, 0.0]"]),
    "model": (GOOD + '[channel]\nmodels = ["F"]\n', ["channel.models", "'F'", "'A', 'B', 'C', 'D' or 'E'"]),
    "missing": (GOOD.replace("pilots = 6\n", ""), ["frontend.pilots", "missing"]),
    "type": (GOOD.replace("rows = 2", "rows = '2'"), ["bs.rows = '2'", "integer"]),
    "dft": (GOOD.replace("pilots = 6", 'pilots = 9\nbeams = "dft"'), ["frontend.pilots", "at most 8", "got 9"]),
    "toml": (GOOD + "[", ["not a TOML file"]),
    "paths": (GOOD + '[channel]\nkind = "paths"\npaths = 0\n', ["channel.paths = 0", "greater than or equal to 1"]),
    "kind": (GOOD + '[channel]\nkind = "tdl"\n', ["channel", "tdl", "'cdl', 'paths'"]),
    "other kind's key": (
        GOOD + '[channel]\nkind = "paths"\nmodels = ["A"]\n',
        ["channel.models", "unknown key; allowed are carrier, direction, kind, paths"],
    ),
    "speed": (GOOD + "[channel]\nspeed = [3.0, 1.0]\n", ["channel", "least <= largest", "[3.0, 1.0]"]),
}

GRID = (
    GOOD.replace("chains = 1", "chains = 1\nsnapshots = 1")
    + '[frontend.pattern]\nkind = "{}"\n{}\n[channel]\nsubcarriers = {}\nsubcarrier_spacing = 30e3\nsnapshots = 14\n'
    + "snapshot_interval = 35e-6\n"
)
"""Kind of pattern, its other keys, and how many subcarriers."""
BAD_GRIDS = {
    "no such pattern": (GRID.format("stripes", "", 12), ["frontend.pattern", "stripes", "'comb', 'kronecker', 'dmrs'"]),
    "another's key": (
        GRID.format("comb", "spacing = 4\nlength = 2", 12),
        ["frontend.pattern.length = 2", "unknown key; allowed are kind, offset, seed, slot, spacing, symbols"],
    ),
    "subcarriers outside": (
        GRID.format("comb", "spacing = 64\noffset = 12", 12),
        ["frontend.pattern: pilots must lie within the 12 subcarriers of the grid, got offset 12"],
    ),
    "symbols outside": (
        GRID.format("kronecker", "symbols = [2, 14]", 12),
        ["frontend.pattern: symbols must lie within the 14 of the grid, 0 to 13, got [2, 14]"],
    ),
    "more pilots than symbols": (
        GRID.format("comb", "spacing = 4\nslot = 5", 12),
        ["frontend.pattern: pilots must be at most the 5 symbols of the slot, got 6"],
    ),
    "more pilots than resource elements": (
        GRID.format("kronecker", "symbols = [2]", 3),
        ["frontend.pattern: pilots must be at most the 3 resource elements of its pilot symbols, got 6"],
    ),
    "more than memory holds": (
        GRID.format("comb", "spacing = 4", 48).replace("pilots = 6", "pilots = 1048576"),
        ["pilots must have at most 16777216 values", "got 1 streams on 1048576 symbols and 48 subcarriers"],
    ),
    "uneven": (
        GRID.format("dmrs", "additional = 3", 12),
        ["frontend.pattern: pilots must be a multiple of the 4 positions of the pattern, got 6"],
    ),
    "two streams on one port": (
        GRID.format("dmrs", "", 12),
        ["frontend.pattern: ports must be different ones of [0, 1, 2, 3]", "got [0, 1, 2, 3, 4, 5]"],
    ),
    "no resource blocks": (GRID.format("dmrs", "type = 2\ngroups = 3", 16), ["whole resource blocks of 12, got 16"]),
    "snapshots of another number": (
        GRID.format("kronecker", "", 12).replace("snapshots = 1\n", "snapshots = 7\n"),
        ["frontend.snapshots must be 1 or channel.snapshots = 14, got 7"],
    ),
    "snapshots that do not divide": (
        GRID.format("comb", "spacing = 4", 12).replace("snapshots = 1\n", "snapshots = 14\n"),
        ["frontend.pattern: snapshots must divide the 6 symbols of the grid, got 14"],
    ),
    "snapshots without pattern": (
        GOOD.replace("chains = 1", "chains = 1\nsnapshots = 2"),
        ["frontend.snapshots must be 1 without frontend.pattern, got 2"],
    ),
}


@pytest.mark.parametrize(
    ("kind", "keys", "measured"),
    [
        ("comb", "spacing = 4", 6 * 3),
        ("comb", "spacing = 4\nsymbols = [0, 2, 4, 6, 8, 10]\nslot = 14\nseed = 3", 6 * 3),
        ("kronecker", "", 2 * 12),
        ("kronecker", "symbols = [1, 4, 7]\nslot = 8", 3 * 12),
        ("dmrs", "additional = 1", 2 * 12),
        ("dmrs", "type = 2\nlength = 2\ngroups = 3", 2 * 12),
    ],
)
def test_a_file_may_say_where_pilots_are(kind: str, keys: str, measured: int, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GRID.format(kind, keys, 12))
    assert chanest.ChannelProblem(chanest.load_scenario(path)).measurements == measured


def test_what_says_nothing_of_a_grid_is_written_as_ever() -> None:
    """Calibrations and weights of a flat front end name its keys, and are found by them."""
    flat, grid = (
        chanest.load_scenario(name).frontend.model_dump(mode="json") for name in ("wideband_64x4", "comb_64x4")
    )
    assert set(flat) == {"pilots", "beams", "bits", "chains", "combiners", "whiten"}
    assert set(grid) == {*flat, "pattern", "snapshots"}


def test_a_good_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    scenario = chanest.load_scenario(path)
    assert scenario.name == "mine"
    assert chanest.ChannelProblem(scenario).measurements == 6


@pytest.mark.parametrize("case", (BAD | BAD_GRIDS).values(), ids=(BAD | BAD_GRIDS).keys())
def test_a_bad_file_gets_one_line(case: tuple[str, list[str]], tmp_path: Path) -> None:
    content, parts = case
    path = tmp_path / "bad.toml"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"bad\.toml: ") as caught:
        chanest.load_scenario(path)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_a_missing_file_or_name_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.toml: no such scenario file"):
        chanest.load_scenario(tmp_path / "none.toml")
    with pytest.raises(ValueError, match="cdl_c_upa64x4"):
        chanest.load_scenario("cdl_z")
