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


def test_a_good_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    scenario = chanest.load_scenario(path)
    assert scenario.name == "mine"
    assert chanest.ChannelProblem(scenario).measurements == 6


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
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
