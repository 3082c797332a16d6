"""What a user passes by mistake or for short: a name in place of an object, an estimate of the wrong shape, σ² as a number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import chanest
from chanest.bounds import get_bound
from chanest.problem import as_problem
from chanest.sionna import EstimatorBlock
from chanest.studies.accuracy import AccuracyStudy, usable_bounds
from chanest.tracking import Tracker
from chanest.weights import usable_estimators
from vlista_core.estimate import Estimate, Estimator
from vlista_core.linops import LinearMap
from vlista_core.study import run_study

TOML = """
[bs]
rows = 2
columns = 2
[ue]
rows = 1
columns = 2
[frontend]
pilots = 3
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(TOML)
    return path


def test_a_scenario_may_be_an_object_a_name_or_a_path(mine: Path) -> None:
    loaded = chanest.load_scenario(mine)
    assert chanest.load_scenario(loaded) is loaded  # type: ignore[arg-type]
    problems = [chanest.ChannelProblem(given) for given in (loaded, mine, str(mine))]
    assert {problem.scenario.channel_hash() for problem in problems} == {loaded.channel_hash()}
    assert as_problem(problems[0]) is problems[0]
    assert chanest.ChannelProblem("cdl_c_upa64x4").signal_length == 256
    assert chanest.get_estimator("ls", mine).signal_length == 8
    assert get_bound("genie-angles", str(mine)).problem.signal_length == 8
    assert "ls" in usable_estimators(mine)[0]
    assert "genie-angles" in usable_bounds(str(mine))
    assert AccuracyStudy(scenario=str(mine), estimators=("ls",)).scenario == loaded  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [5, None, [1], 0.5])
def test_anything_else_is_refused_with_what_is_allowed(given: Any) -> None:
    said = "scenario must be a Scenario, the name of a shipped one or the path of a .toml file, got"
    for call in (chanest.ChannelProblem, chanest.load_scenario, lambda each: chanest.get_estimator("ls", each)):
        with pytest.raises(ValueError, match=f"{said} {type(given).__name__}"):
            call(given)


def test_names_in_the_wrong_order_and_unknown_names_say_what_there_is() -> None:
    with pytest.raises(ValueError, match="unknown estimator 'cdl_c_upa64x4'; known are ls"):
        chanest.get_estimator("cdl_c_upa64x4", "ls")
    with pytest.raises(ValueError, match="no such scenario; did you mean cdl_c_upa64x4"):
        chanest.ChannelProblem("cdl_c_upa64x")


def test_the_name_of_an_estimator_where_one_is_needed_says_what_to_pass() -> None:
    said = r"estimator must be an object with estimate\(y, phi, noise_var\), got "
    with pytest.raises(ValueError, match=f"{said}'gmm'"):
        Tracker("gmm")  # type: ignore[arg-type]
    from sionna.phy.ofdm import ResourceGrid

    grid = ResourceGrid(14, 12, 30e3, pilot_pattern="kronecker", pilot_ofdm_symbol_indices=[2])
    with pytest.raises(ValueError, match=f"{said}'lmmse'"):
        EstimatorBlock(grid, "lmmse")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"{said}the class Short"):
        EstimatorBlock(grid, Short)  # type: ignore[arg-type]


class Short(Estimator):
    """Gives one number per sample, which would be compared with every entry."""

    def estimate(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Estimate:
        return Estimate(y[:, :1])


class Bare(Estimator):
    """Gives a tensor where an Estimate is asked for."""

    def estimate(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Estimate:
        return y  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("mine_too", "said"),
    [
        (Short(), "my own: estimate must return a signal of shape [4, 8], [batch, n], got [4, 1]"),
        (Bare(), "my own: estimate must return an Estimate, such as Estimate(signal), got Tensor"),
    ],
)
def test_a_wrong_estimate_of_ones_own_is_named(mine: Path, tmp_path: Path, mine_too: Estimator, said: str) -> None:
    study = AccuracyStudy(scenario=chanest.load_scenario(mine), snr_db=(10.0,), channels=4)
    result = run_study(study.including({"my own": mine_too}), tmp_path / "run")
    assert result.faults["my own.at_10.snr_10"] == said


def test_the_noise_may_be_any_kind_of_number() -> None:
    problem = chanest.ChannelProblem("cdl_c_upa64x4")
    batch, estimator = problem.sample(2, seed=0, snr_db=10.0), chanest.get_estimator("lmmse", problem)
    wanted = estimator.estimate(batch.y, batch.phi, 0.1).signal
    numbers: list[Any] = [torch.tensor(0.1), torch.tensor(0.1, dtype=torch.float64), np.float32(0.1), batch.noise_var]
    for noise in numbers:
        assert torch.allclose(estimator.estimate(batch.y, batch.phi, noise).signal, wanted, atol=1e-6)
    with pytest.raises(ValueError, match="noise_var must be non-negative"):
        estimator.estimate(batch.y, batch.phi, torch.tensor(-1.0))
    with pytest.raises(ValueError, match=r"noise_var must be a number, a tensor \[\] or a tensor \[2\]"):
        estimator.estimate(batch.y, batch.phi, torch.tensor([0.1]))
