"""Evaluation: same draws for all, honest intervals, cells that resume and spread, results that agree with each other."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import chanest
from chanest import bounds, estimators
from chanest.bounds import Bound
from chanest.estimators import Fit
from chanest.evaluation import Plan, Results, cells, evaluate, run, usable_bounds, usable_estimators
from chanest.evaluation.plan import Cell
from chanest.evaluation.statistics import Errors, summarise
from chanest.problem import ChannelBatch, ChannelProblem
from chanest.weights.training import train_estimator
from vlista_core.estimate import Estimate, Estimator, Measurement
from vlista_core.linops import LinearMap
from vlista_core.metrics import nmse_db, nmse_mean_db, nmse_median_db
from vlista_core.tensorfile import Json

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
frames = 6
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
        train_estimator("lmmse", ChannelProblem(made), Fit())
        yield made


@pytest.fixture(autouse=True)
def _few_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two estimators and two stand-ins for bounds: what is tested here is not theirs."""
    few = {name: estimators._PLACES[name] for name in ("ls", "lmmse")}
    monkeypatch.setattr(estimators, "_PLACES", few)
    for name in reversed(list(bounds.BOUNDS)):  # Undone last first: the registry is then in its order again.
        monkeypatch.delitem(bounds.BOUNDS, name)
    monkeypatch.setitem(bounds.BOUNDS, NearTruth.name, NearTruth)
    monkeypatch.setitem(bounds.BOUNDS, ErrorAlone.name, ErrorAlone)
    cells._bound.cache_clear()


def _plan(scenario: chanest.Scenario, **changes: object) -> Plan:
    settings = {"estimators": ("ls", "lmmse"), "snr_db": (0.0, 20.0), "channels": 40, **changes}
    return Plan(scenario, **settings)  # type: ignore[arg-type]


def _figures(results: Results) -> dict[tuple[str, float, float], float | None]:
    return {(row.name, row.value, row.snr_db): row.nmse_db for row in results.rows}


def test_figures_are_those_of_a_plain_loop_over_the_test_draws(scenario: chanest.Scenario, tmp_path: Path) -> None:
    results = evaluate(_plan(scenario, bounds=("genie-angles", "crb"), channels=300), tmp_path)
    problem = ChannelProblem(scenario)
    batch = problem.sample(300, seed=1, snr_db=20.0)
    for name in ("ls", "lmmse"):
        signal = chanest.get_estimator(name, problem).estimate(batch.y, batch.phi, batch.noise_var).signal
        row = results.row(name, 20.0, 20.0)
        expected = [metric(signal, batch.signal) for metric in (nmse_db, nmse_mean_db, nmse_median_db)]
        assert [row.nmse_db, row.nmse_mean_db, row.nmse_median_db] == pytest.approx(expected, abs=1e-4)
    assert results.row("genie-angles", 0.0, 0.0).nmse_db == pytest.approx(-30.0, abs=1e-4)
    assert results.row("crb", 0.0, 0.0).nmse_db == pytest.approx(-20.0, abs=1e-4)
    assert results.row("crb", 0.0, 0.0).kind == "bound"
    assert results.gap("lmmse", 20.0, 20.0) == pytest.approx(expected[0] + 30.0, abs=1e-3)
    assert results.names("estimator") == ["lmmse", "ls"]


def test_costs_and_provenance_stand_beside_the_errors(scenario: chanest.Scenario, tmp_path: Path) -> None:
    results = evaluate(_plan(scenario), tmp_path)
    row = results.row("lmmse", 0.0, 0.0)
    assert row.parameters
    assert row.parameters >= 2 * 16
    assert row.trained_on == "tiny"
    assert row.weights
    assert row.ms_batch_1
    assert row.ms_batch
    assert row.batch == results.batch == 40
    assert 0 < row.ms_batch < row.ms_batch_1 < 1000
    assert results.row("ls", 0.0, 0.0).parameters == 0
    weights = results.manifest["weights"]
    assert isinstance(weights, dict)
    assert isinstance(weights["lmmse"], dict)
    assert weights["lmmse"]["channel_hash"] == scenario.channel_hash()


def test_an_interrupted_evaluation_goes_on_where_it_stopped(
    scenario: chanest.Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, real = _plan(scenario), cells.run_cell
    done: list[str] = []

    def counted(stop: int) -> Callable[[Cell], dict[str, Json]]:
        def work(cell: Cell) -> dict[str, Json]:
            if len(done) == stop:
                raise KeyboardInterrupt
            done.append(cell["name"])
            return real(cell)

        return work

    monkeypatch.setattr(run.work, "run_cell", counted(3))
    with pytest.raises(KeyboardInterrupt):
        evaluate(plan, tmp_path / "run")
    assert len(list((tmp_path / "run" / "cells").iterdir())) == 3
    with pytest.raises(ValueError, match="no finished evaluation"):
        Results.read(tmp_path / "run")
    done.clear()
    monkeypatch.setattr(run.work, "run_cell", counted(100))
    continued = evaluate(plan, tmp_path / "run")
    assert len(done) == 2 * 2 + 2 - 3
    assert _figures(continued) == _figures(evaluate(plan, tmp_path / "whole"))


def test_cells_of_other_weights_are_not_taken(scenario: chanest.Scenario, tmp_path: Path) -> None:
    plan, folder = _plan(scenario, estimators=("lmmse",)), Path(os.environ["CHANEST_WEIGHTS"])
    before = (folder / "tiny.lmmse.safetensors").read_bytes()
    old = evaluate(plan, tmp_path)
    try:
        train_estimator("lmmse", ChannelProblem(scenario), Fit(seed=5))
        new = evaluate(plan, tmp_path)
    finally:
        (folder / "tiny.lmmse.safetensors").write_bytes(before)
    assert new.row("lmmse", 0.0, 0.0).nmse_db != old.row("lmmse", 0.0, 0.0).nmse_db


def test_a_worker_with_other_weights_refuses(scenario: chanest.Scenario) -> None:
    cell = _plan(scenario).cell("estimator", "lmmse", 0.0, 0.0, weights="0" * 16)
    with pytest.raises(ValueError, match="weights of lmmse have changed"):
        cells.run_cell(cell)


def test_processes_and_a_cluster_give_the_same_figures(scenario: chanest.Scenario, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    plan = _plan(scenario, snr_db=(0.0,))
    here = _figures(evaluate(plan, tmp_path / "here"))
    processes = _figures(evaluate(plan, tmp_path / "processes", workers=2))
    options = {"processes": False, "n_workers": 1, "threads_per_worker": 2, "dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster:
        remote = _figures(evaluate(plan, tmp_path / "cluster", scheduler=cluster.scheduler_address))
    for other in (processes, remote):
        assert other == pytest.approx(here, abs=1e-5)


def test_another_plan_in_the_same_folder_is_refused_unless_restarted(
    scenario: chanest.Scenario, tmp_path: Path
) -> None:
    evaluate(_plan(scenario), tmp_path)
    other = _plan(scenario, channels=30, seed=2)
    with pytest.raises(ValueError, match="holds another evaluation \\(with other channels, seed\\)"):
        evaluate(other, tmp_path)
    assert Results.read(tmp_path).plan.channels == 40
    assert evaluate(other, tmp_path, restart=True).plan.channels == 30
    assert Results.read(tmp_path).rows[0].channels == 30


def test_json_csv_and_memory_agree(scenario: chanest.Scenario, tmp_path: Path) -> None:
    results = evaluate(_plan(scenario, bounds=("crb",)), tmp_path)
    again = Results.read(tmp_path)
    assert again == results
    stored = json.loads((tmp_path / "results.json").read_text())
    with (tmp_path / "results.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == len(stored["rows"]) == 2 * 3
    for line, row in zip(table, stored["rows"], strict=True):
        assert line == {key: "" if value is None else str(value) for key, value in row.items()}
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["plan"]["scenario"]["bs"]["rows"] == 4
    assert manifest["versions"]["torch"] == torch.__version__
    assert manifest["finished"]
    assert not [path for path in tmp_path.rglob("*") if "partial" in path.name]


def test_an_estimator_of_ones_own_takes_part_and_is_never_taken_from_the_store(
    scenario: chanest.Scenario, tmp_path: Path
) -> None:
    plan = _plan(scenario, estimators=("mine", "ls"), snr_db=(10.0,))
    assert evaluate(plan, tmp_path, extra={"mine": Zero()}).row("mine", 10.0, 10.0).nmse_db == pytest.approx(0.0)
    results = evaluate(plan, tmp_path, extra={"mine": Zero(bad=3)})
    row = results.row("mine", 10.0, 10.0)
    assert (row.nmse_db, row.diverged) == (None, 3)
    assert row.nmse_median_db == pytest.approx(0.0, abs=1e-5)
    assert results.names("estimator") == ["ls", "mine"]
    with pytest.raises(ValueError, match="name of a registered"):
        evaluate(_plan(scenario), tmp_path / "a", extra={"ls": Zero()})
    with pytest.raises(ValueError, match="does not name yours"):
        evaluate(_plan(scenario), tmp_path / "a", extra={"yours": Zero()})
    assert not (tmp_path / "a").exists()


def test_a_sweep_changes_the_front_end_and_keeps_channels_and_weights(
    scenario: chanest.Scenario, tmp_path: Path
) -> None:
    plan = _plan(scenario, snr_db=(20.0,), sweep="frames", values=(2, 8), channels=100)
    results = evaluate(plan, tmp_path)
    few, many = (results.row("lmmse", value, 20.0).nmse_db for value in (2, 8))
    assert few is not None
    assert many is not None
    assert many < few - 3
    assert plan.variant(8).channel_hash() == scenario.channel_hash()
    assert ChannelProblem(plan.variant(8)).measurements == 16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sweep": "chains", "values": (1, 3)}, "chains=3 does not suit tiny: frontend.chains must be at most 2"),
        ({"sweep": "frames", "values": (0,)}, "frames=0 does not suit tiny"),
        ({"sweep": "frames"}, "values must be given"),
        ({"values": (3,)}, "values must be given"),
        ({"sweep": "delay"}, "sweep must be one of snr, frames, chains, bits"),
        ({"snr_db": ()}, "snr_db must be"),
        ({"snr_db": (float("nan"),)}, "snr_db must be"),
        ({"snr_db": (1.0, 1.0)}, "snr_db must not name anything twice"),
        ({"channels": 0}, "channels must be an integer of at least 1"),
        ({"estimators": ()}, "at least one"),
        ({"estimators": ("../x",)}, "file names"),
        ({"device": "abacus"}, "device must be cpu"),
    ],
)
def test_a_plan_says_what_is_wrong_with_it(
    scenario: chanest.Scenario, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _plan(scenario, **changes)


def test_bits_are_not_swept_where_nothing_is_quantised(scenario: chanest.Scenario) -> None:
    plain = scenario.model_copy(update={"frontend": scenario.frontend.model_copy(update={"beams": "gaussian"})})
    with pytest.raises(ValueError, match="no quantised beams"):
        _plan(plain, sweep="bits", values=(1, 2))


def test_plans_have_the_same_hash_after_a_round_trip_and_another_for_any_change(scenario: chanest.Scenario) -> None:
    plan = _plan(scenario, sweep="bits", values=(1, 2))
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert Plan.from_json(plan.to_json()).hash() == plan.hash()
    assert _plan(scenario, sweep="bits", values=(1, 3)).hash() != plan.hash()


def test_what_has_no_weights_is_left_out_of_all_and_an_error_by_name(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(TOML)
    other = chanest.load_scenario(tmp_path / "other.toml")
    names, notes = usable_estimators(other)
    assert names == ["ls"]
    assert notes == ["lmmse is left out: lmmse has no weights for other; train them with: chanest train other -e lmmse"]
    assert usable_estimators(other, "tiny") == (["ls", "lmmse"], [])
    assert usable_bounds(other) == ["genie-angles", "crb"]
    with pytest.raises(ValueError, match="chanest train other -e lmmse"):
        evaluate(_plan(other), tmp_path / "run")
    with pytest.raises(ValueError, match="unknown bound 'luck'; known are genie-angles, crb"):
        evaluate(_plan(other, estimators=("ls",), bounds=("luck",)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    results = evaluate(_plan(other, trained_on="tiny"), tmp_path / "run")
    assert results.row("lmmse", 0.0, 0.0).trained_on == "tiny"


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
        assert message in usable_estimators(other)[1][0]
        with pytest.raises(ValueError, match=message):
            evaluate(_plan(other), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_output_folder_that_cannot_be_made_is_one_sentence(scenario: chanest.Scenario, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="output folder cannot be made"):
        evaluate(_plan(scenario), tmp_path / "file" / "run")


def _interval(channels: int, *, group: int = 1, repeat: int = 1) -> Errors:
    generator = np.random.default_rng(3)
    power = generator.uniform(0.5, 1.5, channels).repeat(repeat)
    error = power * 0.1 * generator.chisquare(8, channels).repeat(repeat)
    return summarise(error, power, group=group)


def test_the_interval_holds_the_figure_and_shrinks_like_the_root_of_the_channels() -> None:
    few, many = _interval(100), _interval(1600)
    widths = []
    for errors in (few, many):
        assert errors.nmse_db is not None
        assert errors.nmse_low_db is not None
        assert errors.nmse_high_db is not None
        assert errors.nmse_low_db < errors.nmse_db < errors.nmse_high_db
        widths.append(errors.nmse_high_db - errors.nmse_low_db)
    assert widths[0] / widths[1] == pytest.approx(4.0, rel=0.25)


def test_the_interval_covers_the_truth_about_95_times_in_100() -> None:
    """Independent ratios of mean 0.1·4 = -3.98 dB."""
    generator, truth, inside = np.random.default_rng(0), 10 * np.log10(0.4), 0
    for _ in range(200):
        errors = summarise(0.1 * generator.chisquare(4, 200), np.ones(200))
        assert errors.nmse_low_db is not None
        assert errors.nmse_high_db is not None
        inside += errors.nmse_low_db <= truth <= errors.nmse_high_db
    assert 180 <= inside <= 199


def test_frames_of_one_user_do_not_count_as_independent_channels() -> None:
    alone, copied, grouped = _interval(100), _interval(100, repeat=10), _interval(100, repeat=10, group=10)
    assert grouped.nmse_low_db == pytest.approx(alone.nmse_low_db)
    assert copied.nmse_low_db is not None
    assert grouped.nmse_low_db is not None
    assert grouped.nmse_low_db < copied.nmse_low_db
