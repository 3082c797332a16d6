"""The accuracy study: same draws for all, honest intervals, cells that resume and spread, rows that say whence they come."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import chanest
from chanest import bounds
from chanest.bounds import Bound
from chanest.fit import Fit
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.studies import STUDIES
from chanest.studies.accuracy import AccuracyStudy, nmse_figures, usable_bounds
from chanest.studies.ranking import Ranking
from chanest.weights import usable_estimators
from chanest.weights.training import train_estimator
from vlista_core.estimate import Estimate, Estimator, Measurement
from vlista_core.linops import LinearMap
from vlista_core.metrics import nmse_db, nmse_mean_db, nmse_median_db
from vlista_core.study import Cell, Context, Result, read_study, run_study

TOML = """
[bs]
rows = 4
columns = 2
yaw_spread = 60.0
[ue]
rows = 2
columns = 1
yaw = 180.0
yaw_spread = 180.0
[frontend]
pilots = 6
[data]
train = 100
"""


class NearTruth(Bound):
    """A stand-in for a bound: the truth, 30 dB above its own error."""

    name = "genie-angles"
    label = "stand-in"
    summary = "knows everything"

    @classmethod
    def applies(cls, problem: ChannelProblem) -> bool:
        return True

    def bound(self, batch: ChannelBatch) -> Estimate:
        return Estimate(batch.signal * (1 - 10**-1.5))


class ErrorAlone(NearTruth):
    """A stand-in for a bound that has no estimate."""

    name = "crb"

    def bound(self, batch: ChannelBatch) -> Estimate:
        raise ValueError("has no estimate")

    def errors(self, batch: ChannelBatch) -> Tensor:
        return 0.01 * batch.signal.abs().square().sum(1, dtype=torch.float64)


class Zero(Estimator):
    """An estimator of one's own: knows nothing, so its NMSE is 0 dB; or NaN for the first channels of a batch."""

    def __init__(self, bad: int = 0) -> None:
        self.bad = bad

    def estimate(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Estimate:
        measured = Measurement.checked(y, phi, noise_var)
        signal = y.new_zeros(len(y), measured.phi.shape[1])
        signal[: self.bad] = torch.nan
        return Estimate(signal)


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chanest.Scenario]:
    folder = tmp_path_factory.mktemp("evaluation")
    (folder / "tiny.toml").write_text(TOML)
    made = chanest.load_scenario(folder / "tiny.toml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHANEST_WEIGHTS", str(folder / "weights"))
        train_estimator("lmmse", ChannelProblem(made), Fit(steps=2))
        yield made


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stand-ins for bounds: what is tested here is not theirs."""
    for name in reversed(list(bounds.BOUNDS)):  # Undone last first: the registry is then in its order again.
        monkeypatch.delitem(bounds.BOUNDS, name)
    monkeypatch.setitem(bounds.BOUNDS, NearTruth.name, NearTruth)
    monkeypatch.setitem(bounds.BOUNDS, ErrorAlone.name, ErrorAlone)


def _study(scenario: chanest.Scenario, **changes: object) -> AccuracyStudy:
    settings = {"estimators": ("ls", "lmmse"), "snr_db": (0.0, 20.0), "channels": 40, **changes}
    return AccuracyStudy.model_validate({"scenario": scenario, **settings})


def _ranking(result: Result) -> Ranking:
    assert isinstance(result.study, AccuracyStudy)
    assert not result.faults
    return Ranking(result.study, result.frame)


def _figures(result: Result) -> dict[tuple[object, ...], object]:
    """NMSE by name, value and SNR."""
    rows = [record for record in result.records if record.cell["kind"] != "cost"]
    return {(r.cell["name"], r.cell["value"], r.cell["snr_db"]): r.row["nmse_db"] for r in rows}


def test_figures_are_those_of_a_plain_loop_over_the_test_draws(scenario: chanest.Scenario, tmp_path: Path) -> None:
    found = _ranking(run_study(_study(scenario, bounds=("genie-angles", "crb"), channels=300), tmp_path))
    problem = ChannelProblem(scenario)
    batch = problem.sample(300, seed=1, snr_db=20.0)
    for name in ("ls", "lmmse"):
        signal = chanest.get_estimator(name, problem).estimate(batch.y, batch.phi, batch.noise_var).signal
        expected = [metric(signal, batch.signal) for metric in (nmse_db, nmse_mean_db, nmse_median_db)]
        levels = [found.level(name, (20.0, 20.0), key) for key in ("nmse_db", "nmse_mean_db", "nmse_median_db")]
        assert levels == pytest.approx(expected, abs=1e-4)
    assert found.level("genie-angles", (0.0, 0.0)) == pytest.approx(-30.0, abs=1e-4)
    assert found.level("crb", (0.0, 0.0)) == pytest.approx(-20.0, abs=1e-4)
    assert found.gap("lmmse", (20.0, 20.0)) == pytest.approx(expected[0] + 30.0, abs=1e-3)
    assert found.best_first("estimator") == ["lmmse", "ls"]
    assert found.best_first("bound") == ["genie-angles", "crb"]


def test_rows_say_what_they_cost_and_where_the_weights_come_from(scenario: chanest.Scenario, tmp_path: Path) -> None:
    records = {record.cell["name"]: record for record in run_study(_study(scenario), tmp_path).records}
    cost, plain = records["lmmse"], records["ls"]
    assert (cost.cell["kind"], cost.row["batch"], cost.row["trained_on"]) == ("cost", 40, "tiny")
    assert isinstance(cost.row["parameters"], int)
    assert cost.row["parameters"] >= 2 * 16
    alone, together = cost.row["ms_batch_1"], cost.row["ms_batch"]
    assert isinstance(alone, float)
    assert isinstance(together, float)
    assert min(alone, together) > 0
    made = cost.provenance
    assert (made.seed, made.weights, made.budget) == (1, cost.cell["weights"], "2 steps")
    assert isinstance(made.recipe, dict)
    assert made.recipe["seed"] == 0
    assert made.versions is not None
    assert made.versions["torch"] == torch.__version__
    assert (plain.row["parameters"], plain.cell["weights"], plain.provenance.recipe) == (0, None, None)


class _Stop(Exception):
    """Not a fault of a cell: it ends the run."""


def test_an_interrupted_study_goes_on_where_it_stopped(
    scenario: chanest.Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    real = AccuracyStudy.run

    def counted(self: AccuracyStudy, cell: Cell, context: Context) -> dict[str, object]:
        if len(done) == 3:
            raise _Stop
        done.append(str(cell["name"]))
        return real(self, cell, context)  # type: ignore[return-value]

    with monkeypatch.context() as patch:
        patch.setattr(AccuracyStudy, "run", counted)
        with pytest.raises(_Stop):
            run_study(_study(scenario), tmp_path / "run")
    assert len(read_study(tmp_path / "run", STUDIES).records) == 3
    ran: list[str] = []
    continued = run_study(_study(scenario), tmp_path / "run", ended=lambda each: ran.append(each.name))
    assert len(ran) == 2 * 2 + 2 - 3
    assert _figures(continued) == _figures(run_study(_study(scenario), tmp_path / "whole"))


def test_cells_of_other_weights_are_not_taken(scenario: chanest.Scenario, tmp_path: Path) -> None:
    study, folder = _study(scenario, estimators=("lmmse",)), Path(os.environ["CHANEST_WEIGHTS"])
    before = (folder / "tiny.lmmse.safetensors").read_bytes()
    old = _figures(run_study(study, tmp_path))
    try:
        train_estimator("lmmse", ChannelProblem(scenario), Fit(steps=2, seed=5))
        new = _figures(run_study(study, tmp_path))
    finally:
        (folder / "tiny.lmmse.safetensors").write_bytes(before)
    assert new["lmmse", 0.0, 0.0] != old["lmmse", 0.0, 0.0]


def test_a_worker_with_other_weights_refuses(scenario: chanest.Scenario, tmp_path: Path) -> None:
    study = _study(scenario, estimators=("lmmse",))
    with pytest.raises(ValueError, match="weights of lmmse have changed"):
        study.run({**study.cells()[0], "weights": "0" * 16}, Context(tmp_path))


def test_processes_and_a_cluster_give_the_same_figures(scenario: chanest.Scenario, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    study = _study(scenario, snr_db=(0.0,))
    here = _figures(run_study(study, tmp_path / "here"))
    processes = _figures(run_study(study, tmp_path / "processes", workers=2))
    options = {"processes": False, "n_workers": 1, "threads_per_worker": 2, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster:
        remote = _figures(run_study(study, tmp_path / "cluster", scheduler=cluster.scheduler_address))
    for other in (processes, remote):
        assert other == pytest.approx(here, abs=1e-5)


def test_another_study_in_the_same_folder_is_refused_unless_restarted(
    scenario: chanest.Scenario, tmp_path: Path
) -> None:
    run_study(_study(scenario), tmp_path)
    other = _study(scenario, channels=30, seed=2)
    with pytest.raises(ValueError, match="holds another accuracy study, with other seed, channels"):
        run_study(other, tmp_path)
    before = read_study(tmp_path, STUDIES).study
    assert isinstance(before, AccuracyStudy)
    assert before.channels == 40
    assert {record.cell["channels"] for record in run_study(other, tmp_path, restart=True).records} == {30}


def test_estimators_bounds_and_snrs_can_be_added_to_a_folder(scenario: chanest.Scenario, tmp_path: Path) -> None:
    first = _figures(run_study(_study(scenario, estimators=("ls",), snr_db=(0.0,)), tmp_path))
    ran: list[str] = []
    more = _study(scenario, estimators=("lmmse",), bounds=("crb",), snr_db=(20.0,))
    grown = run_study(more, tmp_path, ended=lambda each: ran.append(each.name))
    figures = _figures(grown)
    assert {key[0] for key in figures} == {"ls", "lmmse", "crb"}
    assert len(figures) == 6
    assert figures["ls", 0.0, 0.0] == first["ls", 0.0, 0.0]
    assert "ls.at_0.snr_0" not in ran


def test_an_estimator_of_ones_own_takes_part_and_is_never_taken_from_the_store(
    scenario: chanest.Scenario, tmp_path: Path
) -> None:
    study = _study(scenario, estimators=("ls",), snr_db=(10.0,))
    point = (10.0, 10.0)
    first = _ranking(run_study(study.including({"mine": Zero()}), tmp_path))
    assert first.level("mine", point) == pytest.approx(0.0)
    found = _ranking(run_study(study.including({"mine": Zero(bad=3)}), tmp_path, workers=2))
    assert found.level("mine", point) is None
    assert found.rows["mine", point]["diverged"] == 3
    assert found.level("mine", point, "nmse_median_db") == pytest.approx(0.0, abs=1e-5)
    assert found.best_first("estimator") == ["ls", "mine"]
    for wrong, message in (("ls", "name of a registered"), ("../x", "must be of letters")):
        with pytest.raises(ValueError, match=message):
            run_study(_study(scenario, estimators=()).including({wrong: Zero()}), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_sweep_changes_the_front_end_and_keeps_channels_and_weights(
    scenario: chanest.Scenario, tmp_path: Path
) -> None:
    study = _study(scenario, snr_db=(20.0,), sweep="pilots", values=(2, 8), channels=100)
    found = _ranking(run_study(study, tmp_path))
    few, many = (found.level("lmmse", (value, 20.0)) for value in (2, 8))
    assert few is not None
    assert many is not None
    assert many < few - 3
    assert study.variant(8).channel_hash() == scenario.channel_hash()
    assert ChannelProblem(study.variant(8)).measurements == 16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sweep": "chains", "values": (1, 3)}, "chains=3 does not suit tiny: frontend.chains must be at most 2"),
        ({"sweep": "pilots", "values": (0,)}, "pilots=0 does not suit tiny"),
        ({"sweep": "pilots"}, "values must be given"),
        ({"values": (3,)}, "values must be given"),
        ({"sweep": "delay"}, "'snr', 'pilots', 'chains' or 'bits'"),
        ({"snr_db": ()}, "snr_db must be"),
        ({"snr_db": (float("nan"),)}, "snr_db must be"),
        ({"snr_db": (1.0, 1.0)}, "snr_db must not name anything twice"),
        ({"channels": 0}, "channels must be an integer of at least 1"),
        ({"estimators": ()}, "at least one"),
        ({"estimators": ("../x",)}, "unknown estimator '../x'"),
        ({"device": "abacus"}, "device must be cpu"),
    ],
)
def test_a_study_says_what_is_wrong_with_it(
    scenario: chanest.Scenario, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        run_study(_study(scenario, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_bits_are_not_swept_where_nothing_is_quantised(scenario: chanest.Scenario) -> None:
    plain = scenario.model_copy(update={"frontend": scenario.frontend.model_copy(update={"beams": "gaussian"})})
    with pytest.raises(ValueError, match="no quantised beams"):
        _study(plain, sweep="bits", values=(1, 2)).cells()


def test_a_study_is_the_same_after_a_round_trip(scenario: chanest.Scenario) -> None:
    study = _study(scenario, sweep="bits", values=(1, 2))
    assert AccuracyStudy.model_validate_json(study.model_dump_json()) == study


def test_what_has_no_weights_is_left_out_of_all_and_an_error_by_name(
    scenario: chanest.Scenario, tmp_path: Path
) -> None:
    (tmp_path / "other.toml").write_text(TOML)
    other = chanest.load_scenario(tmp_path / "other.toml")
    names, refused = usable_estimators(ChannelProblem(other))
    assert "ls" in names
    path = tmp_path / "other.toml"
    assert refused["lmmse"] == f"lmmse has no weights for other; train them with: chanest train {path} -e lmmse"
    assert "lmmse" in usable_estimators(ChannelProblem(other), "tiny")[0]
    assert usable_bounds(other) == ("genie-angles", "crb")
    with pytest.raises(ValueError, match=f"chanest train {re.escape(str(path))} -e lmmse"):
        run_study(_study(other), tmp_path / "run")
    with pytest.raises(ValueError, match="unknown bound 'luck'; known are genie-angles, crb"):
        run_study(_study(other, estimators=("ls",), bounds=("luck",)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    records = run_study(_study(other, trained_on="tiny"), tmp_path / "run").records
    assert {record.row["trained_on"] for record in records if record.cell["name"] == "lmmse"} == {"tiny"}


def test_weights_of_other_arrays_or_channels_are_refused_in_one_sentence(
    scenario: chanest.Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = (Path(os.environ["CHANEST_WEIGHTS"]) / "tiny.lmmse.safetensors").read_bytes()
    monkeypatch.setenv("CHANEST_WEIGHTS", str(tmp_path))
    changes = {"larger": ("rows = 4", "rows = 8"), "turned": ("yaw_spread = 60.0", "yaw_spread = 30.0")}
    for name, message in (("larger", "was made for tiny"), ("turned", "weights of the channels of tiny")):
        (tmp_path / f"{name}.toml").write_text(TOML.replace(*changes[name]))
        (tmp_path / f"{name}.lmmse.safetensors").write_bytes(weights)
        other = chanest.load_scenario(tmp_path / f"{name}.toml")
        assert message in usable_estimators(ChannelProblem(other))[1]["lmmse"]
        with pytest.raises(ValueError, match=message):
            run_study(_study(other), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_output_folder_that_cannot_be_made_is_one_sentence(scenario: chanest.Scenario, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="output folder cannot be made"):
        run_study(_study(scenario), tmp_path / "file" / "run")


def _interval(channels: int, *, group: int = 1, repeat: int = 1) -> tuple[float, float, float]:
    """Low end, figure and high end in dB of made-up errors."""
    generator = np.random.default_rng(3)
    power = generator.uniform(0.5, 1.5, channels).repeat(repeat)
    error = power * 0.1 * generator.chisquare(8, channels).repeat(repeat)
    found = nmse_figures(error, power, group=group)
    low, level, high = (found[key] for key in ("nmse_low_db", "nmse_db", "nmse_high_db"))
    assert isinstance(low, float)
    assert isinstance(level, float)
    assert isinstance(high, float)
    return low, level, high


def test_the_interval_holds_the_figure_and_shrinks_like_the_root_of_the_channels() -> None:
    widths = []
    for low, level, high in (_interval(100), _interval(1600)):
        assert low < level < high
        widths.append(high - low)
    assert widths[0] / widths[1] == pytest.approx(4.0, rel=0.25)


def test_snapshots_of_one_user_do_not_count_as_independent_channels() -> None:
    alone, copied, grouped = _interval(100), _interval(100, repeat=10), _interval(100, repeat=10, group=10)
    assert grouped[0] == pytest.approx(alone[0])
    assert grouped[0] < copied[0]
