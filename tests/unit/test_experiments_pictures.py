"""Out-of-distribution detection, calibration and the image grids: their pieces on known answers, whole cells on toy digits."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from vlista_core.data.image_problem import ImageProblem
from vlista_core.data.image_set import ImageData
from vlista_core.dictionaries import LearnedDictionary
from vlista_core.estimate import Estimate, Estimator
from vlista_core.experiments import image_models, images, ood
from vlista_core.experiments.calibration import Calibration, Intervals, best_factor, reliability
from vlista_core.experiments.experiment import Experiment
from vlista_core.experiments.ood import OutOfDistribution, auroc_interval, draw_pair, p_value, score_images
from vlista_core.experiments.reconstructions import Reconstructions, packed, unpacked
from vlista_core.linops import DenseMap, LinearMap
from vlista_core.metrics import auroc
from vlista_core.models import VLISTA
from vlista_core.problems import Batch
from vlista_core.solvers import BCS
from vlista_core.study import Context, Provenance, Record, frame
from vlista_core.tensorfile import Json

SIDE = 12


def _normal(*shape: int, seed: int = 0, mean: float = 0.0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + mean


def _toy() -> ImageData:
    """A bright bar for each digit, on noise: digit d has it in row d + 1."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 10
    images = torch.randint(0, 60, (120, SIDE, SIDE), generator=generator, dtype=torch.uint8)
    images[torch.arange(120), labels + 1] += 150
    return ImageData("toy", images[:80], labels[:80], images[80:], labels[80:])


PROBLEM = ImageProblem(data=_toy(), rows=40, centred=True)


def _fit(
    model: str, recipe: str | None, problem: ImageProblem, seed: int, weights: Path
) -> tuple[Estimator, dict[str, Json]]:
    weights.touch()
    if model.startswith("vlista"):
        dictionary = LearnedDictionary(torch.eye(SIDE * SIDE))
        return VLISTA(dictionary, problem.measurements, augmentation="adaptive", anchored=True, prior_width=2), {}
    return BCS(iterations=30), {}


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Context:
    """Toy digits and untrained models in place of the true ones."""
    monkeypatch.setattr(images, "images_of", lambda name, folder, size: _toy())
    monkeypatch.setattr(images, "fit", _fit)
    return Context(tmp_path)


def _run(experiment: Experiment, context: Context, **chosen: Json) -> Record:
    [cell] = [cell for cell in experiment.cells() if all(cell[key] == value for key, value in chosen.items())]
    row = experiment.run(cell, context)
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert experiment.figure in row
    return Record(cell=cell, row=row, provenance=Provenance())


def test_the_p_value_is_that_of_welchs_test() -> None:
    a, b = _normal(30), 2.0 * _normal(50, seed=1, mean=0.4)
    gap = a.mean() - b.mean()
    each = a.var() / 30, b.var() / 50
    t = float(gap / (each[0] + each[1]).sqrt())
    freedom = float((each[0] + each[1]) ** 2 / (each[0] ** 2 / 29 + each[1] ** 2 / 49))
    assert p_value(a, b) == pytest.approx(2 * stats.t.sf(abs(t), freedom), rel=1e-9)
    assert p_value(a, a) == 1.0
    assert p_value(torch.ones(4), torch.ones(4)) == 1.0


def test_any_affine_reading_of_the_cdf_has_the_same_p_value() -> None:
    variances = _normal(40, 784).square(), 1.2 * _normal(40, 784, seed=1).square()
    grid = torch.linspace(0.0, max(float(part.max()) for part in variances), 40_001, dtype=torch.float64)
    heights = [
        torch.stack([torch.searchsorted(row.sort().values, grid, right=True) / 784 for row in part]).double().mean(1)
        for part in variances
    ]
    means = [part.mean(1) for part in variances]
    assert p_value(*heights) == pytest.approx(p_value(means[0], means[1]), rel=2e-2)


def test_the_interval_of_auroc_holds_the_truth_as_often_as_it_says() -> None:
    shift = 0.8
    truth = 0.5 * (1.0 + math.erf(shift / 2.0))
    held = 0
    for seed in range(60):
        value, low, high = auroc_interval(_normal(40, seed=2 * seed), _normal(40, seed=2 * seed + 1, mean=shift), seed)
        assert low < value < high
        held += low <= truth <= high
    assert 52 <= held <= 60
    a, b = _normal(20), _normal(25, seed=1, mean=0.3)
    assert auroc_interval(a, b, 0)[0] == auroc(a, b)
    assert auroc_interval(a, b, 0) == auroc_interval(a, b, 0)
    assert auroc_interval(a, a + 100.0, 0) == (1.0, 1.0, 1.0)
    assert auroc_interval(a, a.clone(), 0)[0] == pytest.approx(0.5)


def test_both_kinds_have_the_noise_and_the_mean_of_the_first_and_no_matrix_in_common() -> None:
    inside, outside = replace(PROBLEM, classes=ood.DIGITS[0]), replace(PROBLEM, classes=ood.others(0))
    home, away = draw_pair(inside, outside, 6, 0, 20.0)
    assert torch.allclose(home.noise_var, away.noise_var, rtol=1e-5)
    matrices = torch.cat([home.phi.materialize(), away.phi.materialize()])
    assert len({matrix.numpy().tobytes() for matrix in matrices}) == 12
    clean = draw_pair(inside, outside, 6, 0, None)[1]
    assert torch.allclose(clean.y, clean.phi.apply(clean.signal), atol=1e-5)
    labels = _toy().test_labels
    expected = _toy().test[torch.isin(labels, torch.tensor(ood.others(0)))][6:12].float() / 255
    assert torch.allclose(inside.images(clean.signal), expected, atol=1e-6)
    assert not torch.allclose(outside.images(clean.signal), expected, atol=1e-2)


def test_scores_are_what_their_words_say() -> None:
    class Known(Estimator):
        def estimate(self, y: torch.Tensor, phi: Any, noise_var: Any) -> Estimate:
            return Estimate(torch.full((2, 2), 2.0), variance=torch.tensor([[1.0, 3.0], [4.0, 4.0]]))

    phi = DenseMap(torch.tensor([[0.25, 0.0]]))
    batch = Batch(torch.tensor([[1.0, 2.0], [2.0, 2.0]]), torch.ones(2, 1), phi, torch.zeros(2))
    scores = score_images(Known(), batch, 3)
    assert set(scores) == set(ood.SCORES)
    for name, expected in {
        "variance": [2.0, 4.0],
        "log variance": [0.5 * math.log(3.0), math.log(4.0)],
        "relative variance": [0.5, 1.0],
        "residual": [0.25, 0.25],
        "error": [0.5, 0.0],
    }.items():
        assert scores[name].tolist() == pytest.approx(expected), name


def test_intervals_of_true_gaussians_cover_and_the_factor_is_found() -> None:
    estimate = torch.zeros(40, 500, dtype=torch.float64)
    variance = torch.rand(40, 500, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.2
    found = Intervals(estimate, variance, variance.sqrt() * _normal(40, 500))
    right = reliability(found)
    assert float(str(right["calibration_error"])) < 0.01
    assert right["width"] == pytest.approx(2 * 1.6449 * float(variance.sqrt().mean()), abs=1e-3)
    narrow = found.scaled(0.04)
    assert float(str(reliability(narrow)["calibration_error"])) > 0.3
    assert best_factor(narrow) == pytest.approx(25.0, rel=0.13)


def test_images_come_back_as_they_were_kept() -> None:
    image = torch.tensor([[0.0, 0.5, 1.0], [0.2, 0.4, 0.6]])
    assert np.array_equal(unpacked(packed(image), (2, 3)), [[0, 128, 255], [51, 102, 153]])


@pytest.mark.parametrize("model", OutOfDistribution().models)
def test_a_cell_of_detection_holds_every_noise_level(model: str, toys: Context, tmp_path: Path) -> None:
    experiment = OutOfDistribution(images=4, draws=3)
    record = _run(experiment, toys, model=model, seed=0)
    cell: dict[str, Any] = dict(record.row)
    words = "" if model == "bcs" else ".recipe-paper"
    assert (tmp_path / f"ood.{model}.m100.s0{words}.safetensors").exists()
    assert cell["test_samples"] == 8
    assert list(cell["p_values"]) == list(cell["auroc"]) == list(ood.NOISE)
    assert all(0.0 <= p <= 1.0 for p in cell["p_values"].values())
    assert cell["auroc_noiseless"] == cell["auroc"]["noiseless"][0]
    assert cell["scores"][ood.PAPER[model][0]]["auroc"] == cell["auroc"]
    p_table, *auroc_tables, over_splits = experiment.tables(frame([record]))
    assert sum("–" not in line for line in p_table.lines) == len(ood.PAPER[model])
    shown = [sum("–" not in line for line in table.lines) for table in auroc_tables]
    assert shown == [len(ood.SCORES), *[0] * (len(ood.DIGITS) - 1)]
    assert sum("–" not in line for line in over_splits.lines) == len(ood.SCORES)
    [figure] = experiment.figures(frame([record]), tmp_path)
    assert figure.path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("model", Calibration().models)
def test_a_cell_of_calibration_uses_the_tables_network(model: str, toys: Context, tmp_path: Path) -> None:
    experiment = Calibration(test_images=5, validation_images=4, draws=3)
    record = _run(experiment, toys, model=model)
    cell: dict[str, Any] = dict(record.row)
    words = "" if model == "bcs" else ".recipe-paper"
    assert (tmp_path / f"mnist.{model}.m100.s0{words}.safetensors").exists()
    assert cell["test_samples"] == 5
    for form in ("raw", "scaled"):
        covered = list(cell[form]["coverage"].values())
        assert len(covered) == 19
        assert covered == sorted(covered)
    table, compared = experiment.tables(frame([record]))
    assert all(text == "–" for line in compared.lines for text in line[1:])
    known = [line[1] for line in table.lines if line[0] == model and "–" not in line]
    assert known == [*(["of the dictionaries alone"] if model != "bcs" else []), "its own", "scaled"]
    [figure] = experiment.figures(frame([record]), tmp_path)
    assert figure.path.read_bytes().startswith(b"\x89PNG")


def test_vlista_is_compared_with_its_control_image_by_image_and_split_by_split() -> None:
    experiment = Calibration(seeds=1)
    values = {"vlista": [0.5, 0.7, 0.9, 0.7], "vlista-constant": [0.4, 0.5, 0.7, 0.6]}
    rows: dict[str, dict[str, Json]] = {
        model: {"log_likelihoods": list(each), "diverged": 0, "history": [[10, 1.0, -5.0 + place], [20, 2.0, -3.0]]}
        for place, (model, each) in enumerate(values.items())
    }
    *_, compared = experiment.tables(frame([_record(experiment, row, model=model) for model, row in rows.items()]))
    margin = 1.95996 * float(np.std([0.1, 0.2, 0.2, 0.1], ddof=1)) / 2
    assert compared.lines == [("0", "5.0", "4.0", "+1.0", "0.7000", "0.5500", f"+0.1500 ± {margin:.4f}")]

    detection = OutOfDistribution()
    records = [
        _record(
            detection, {"scores": {"variance": {"auroc": {"noiseless": [value, 0.0, 1.0]}}}}, model=model, seed=seed
        )
        for model, each in values.items()
        for seed, value in enumerate(each)
    ]
    *_, over_splits = detection.tables(frame(records))
    found = {line[:2]: line[2] for line in over_splits.lines}
    score = ood.SCORES["variance"]
    assert found["vlista", score] == "0.700 (4)"
    half = stats.t.ppf(0.975, 3) * np.std([0.1, 0.2, 0.2, 0.1], ddof=1) / 2
    assert found["vlista less vlista-constant", score] == f"+0.150 ± {half:.3f}"


def _record(experiment: Experiment, row: dict[str, Json], **chosen: Json) -> Record:
    [cell] = [cell for cell in experiment.cells() if all(cell[key] == value for key, value in chosen.items())]
    return Record(cell=cell, row=row, provenance=Provenance())


def test_cells_of_reconstructions_hold_the_pictures(toys: Context, tmp_path: Path) -> None:
    experiment = Reconstructions()
    names = ("canonical", "vlista")
    records = [_run(experiment, toys, model=model, measurements=100, data="cifar10") for model in names]
    cells: list[dict[str, Any]] = [dict(record.row) for record in records]
    assert (tmp_path / "cifar10.vlista.m100.s0.recipe-paper.safetensors").exists()
    for cell in cells:
        assert len(cell["images"]) == len(cell["truth"]) == len(cell["ssim_each"]) == cell["test_samples"] == 6
        shown = [unpacked(text, (SIDE, SIDE)) for text in cell["truth"]]
        assert np.abs(np.array(shown).astype(int) - _toy().test[:6].numpy()).max() <= 1
    mnist, cifar10 = experiment.tables(frame(records))
    assert cifar10.lines[0] == ("canonical", "–", f"{cells[0]['ssim']:.3f}", "–")
    assert mnist.lines[0] == ("canonical", "–", "–", "–")
    [figure] = experiment.figures(frame(records), tmp_path)
    assert figure.path.name == "reconstructions_cifar10_m100.png"
    assert figure.path.read_bytes().startswith(b"\x89PNG")


def test_a_network_that_is_kept_tells_how_it_was_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = image_models.OURS["dlista"]
    monkeypatch.setitem(image_models.OURS, "dlista", replace(recipe, steps=2, batch_size=4))
    monkeypatch.setattr(image_models, "START_IMAGES", 200)
    weights = tmp_path / "toy.dlista.m40.s0.safetensors"
    batch = PROBLEM.sample(3, seed=0)
    (trained, told), (kept, again) = (image_models.fit("dlista", "ours", PROBLEM, 0, weights) for _ in range(2))
    assert trained is not kept
    assert told == again
    assert isinstance(told["budget"], dict)
    assert (told["budget"]["steps"], told["budget"]["samples"]) == (2, 8)
    assert isinstance(told["training"], dict)
    assert told["training"]["learning_rate"] == recipe.rate
    first, second = (each.estimate(batch.y, batch.phi, 0.0).signal for each in (trained, kept))
    assert torch.equal(first, second)


class Broken(BCS):
    """BCS whose first image and its variance are NaN."""

    def estimate(self, y: torch.Tensor, phi: LinearMap | torch.Tensor, noise_var: torch.Tensor | float) -> Estimate:
        out = super().estimate(y, phi, noise_var)
        assert out.variance is not None
        out.signal[0, 0] = out.variance[0, 0] = math.nan
        return out


@pytest.mark.parametrize(
    ("experiment", "chosen", "column", "shown"),
    [
        (OutOfDistribution(images=3), {"model": "bcs", "seed": 0}, 3, "diverged (8)"),
        (Calibration(test_images=3, validation_images=3), {"model": "bcs"}, 2, "diverged (1)"),
        (Reconstructions(images=3), {"model": "canonical", "measurements": 100, "data": "mnist"}, 2, "diverged (1)"),
    ],
    ids=["ood", "calibration", "reconstructions"],
)
def test_what_diverged_is_counted_in_tables_and_left_out_of_pictures(
    experiment: Experiment, chosen: dict[str, Json], column: int, shown: str, toys: Context, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(images, "fit", lambda *_: (Broken(iterations=5), {}))
    record = _run(experiment, toys, **chosen)
    rows = frame([record])
    assert any(line[column] == shown for line in experiment.tables(rows)[0].lines)
    assert shown in experiment.describe(record.cell, record.row)
    [figure] = experiment.figures(rows, tmp_path)
    assert figure.path.read_bytes().startswith(b"\x89PNG")
