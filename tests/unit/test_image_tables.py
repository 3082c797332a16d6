"""The cells of the image tables, run whole on toy images: every model, the same figure twice, weights kept and used again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vlista_core.data.image_problem import ImageProblem
from vlista_core.data.image_set import ImageData
from vlista_core.experiments import baselines, image_models, images, paper_recipe
from vlista_core.experiments.image_models import OURS, recipes_of
from vlista_core.experiments.images import ImageTable, Mnist, MnistFixed
from vlista_core.experiments.recipes import Recipe
from vlista_core.models import ADLISTA, DLISTA
from vlista_core.models.distributions import Gaussian
from vlista_core.study import Cell, Context


def _toy() -> ImageData:
    """Smooth blobs of 12×12 pixels at random places."""
    generator = torch.Generator().manual_seed(0)
    centres = 2 + 8 * torch.rand(500, 2, generator=generator)
    axis = torch.arange(12.0)
    squares = (axis - centres[:, :1]).square()[:, :, None] + (axis - centres[:, 1:]).square()[:, None, :]
    pixels = (255 * torch.exp(-squares / 6)).byte()
    labels = torch.arange(500) % 10
    return ImageData("mnist", pixels[:400], labels[:400], pixels[400:], labels[400:])


VARYING, FIXED = Mnist(test_images=40, test_images_bcs=10), MnistFixed(test_images=40)
_SOME = 0.3
"""Well above the 0.07 that the mean image scores on the toy images."""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    data = _toy()
    monkeypatch.setattr(images, "images_of", lambda name, folder, size: data)
    monkeypatch.setattr(image_models, "START_IMAGES", 300)
    monkeypatch.setattr(baselines, "SPARSE_IMAGES", 100)
    monkeypatch.setattr(baselines, "COUNTS", (1, 10, 100))
    monkeypatch.setattr(baselines, "COVARIANCE_IMAGES", 300)
    monkeypatch.setattr(image_models, "WARM", _tiny(image_models.WARM, 16))
    monkeypatch.setattr(paper_recipe, "PRIOR_WIDTH", 2)
    monkeypatch.setattr(paper_recipe, "recipe_for", lambda name, problem: _PAPER)
    for name, made in OURS.items():
        monkeypatch.setitem(OURS, name, replace(_tiny(made, 16), sharing=4))


_PAPER = paper_recipe.PaperRecipe(8, batch_size=16, validation_samples=16, validate_every=4)


def _tiny(recipe: Recipe[ImageProblem], size: int) -> Recipe[ImageProblem]:
    return replace(recipe, steps=4, batch_size=size, validations=2, validation_samples=16)


def _run(table: ImageTable, model: str, recipe: str | None, folder: Path, m: int = 40) -> dict[str, object]:
    folder.mkdir(exist_ok=True)
    cell: Cell = {"model": model, "measurements": m, "seed": 1, **({"recipe": recipe} if recipe else {})}
    return dict(table.run(cell, Context(folder)))


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("table", [VARYING, FIXED], ids=["varying", "fixed"])
def test_every_model_runs_and_sees_more_than_the_mean_image(table: ImageTable, tmp_path: Path) -> None:
    """NALISTA, whose network has to learn all, and dictionaries that start at random need more than a few steps."""
    for model in table.models:
        for recipe in recipes_of(model):
            result = _run(table, model, recipe, tmp_path)
            assert result["test_samples"] == (10 if model == "bcs" else 40)
            slow = model.startswith("nalista") or recipe == "paper"
            assert float(str(result["ssim"])) > (0.05 if slow else _SOME), (model, recipe)
            assert ("history" in result) == (recipe is not None)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("model", "recipe"), [("a-dlista-adaptive", "ours"), ("vlista", "paper"), ("spca", None)])
def test_a_cell_gives_its_figure_again(model: str, recipe: str | None, tmp_path: Path) -> None:
    table = VARYING
    first = _run(table, model, recipe, tmp_path / "a")
    assert _run(table, model, recipe, tmp_path / "b")["ssim"] == first["ssim"]
    kept = _run(table, model, recipe, tmp_path / "a")
    assert kept["ssim"] == first["ssim"]
    assert kept.get("budget") == first.get("budget")


@pytest.mark.usefixtures("short")
def test_weights_are_called_as_their_cell_and_by_size(tmp_path: Path) -> None:
    """--restart removes what begins with the name of a cell; both sizes may run in one folder."""
    half = Mnist(size="half", test_images=40)
    for table in (VARYING, half):
        _run(table, "lista", "paper", tmp_path)
    name = VARYING.cell_id({"model": "lista", "measurements": 40, "seed": 1, "recipe": "paper"})
    found = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert found == [f"{name}.half.safetensors", f"{name}.safetensors"]


@pytest.mark.usefixtures("short")
def test_a_cell_says_when_it_passed_the_printed_figure(tmp_path: Path) -> None:
    result = _run(VARYING, "dlista", "ours", tmp_path, m=100)
    seconds, spent = float(str(result["seconds_to_printed"])), result["budget"]
    assert isinstance(spent, dict)
    assert 0 < seconds <= spent["seconds"]


@pytest.mark.usefixtures("short")
def test_vlista_learns_from_its_bound_and_a_row_tells_what_its_posterior_did(tmp_path: Path) -> None:
    rows = {model: _run(VARYING, model, "paper", tmp_path) for model in ("vlista", "vlista-constant")}
    for row in rows.values():
        trace = row["trace"]
        assert isinstance(trace, list)
        assert len(trace) == 2
        assert all(len(trace[-1][key]) == 3 for key in ("log_likelihood", "divergence", "deviation"))
        assert trace[-1]["deviation"] != trace[0]["deviation"]
    learned, constant = (rows[model]["trace"][-1]["over_entries"] for model in rows)  # type: ignore[index]
    assert min(learned) > 0.01
    assert max(constant) < 1e-6


def test_variation_is_that_of_all_samples_even_if_they_come_one_by_one() -> None:
    values = torch.rand(6, 4, 5, generator=torch.Generator().manual_seed(0)) + 0.5
    seen = paper_recipe.Deviations(1)
    assert seen.summary() == {}
    for each in values.split(1):
        seen.add([Gaussian(each, each)])
    found = {key: float(value) for key, value in seen.summary().items()}
    assert found["deviation"] == pytest.approx(float(values.mean()), rel=1e-5)
    assert found["over_samples"] == pytest.approx(float((values.std(0) / values.mean(0)).mean()), rel=1e-5)
    assert found["over_entries"] == pytest.approx(float((values.std((1, 2)) / values.mean((1, 2))).mean()), rel=1e-5)


def test_the_papers_recipe_has_its_rates_and_a_matrix_for_every_image() -> None:
    problem = ImageProblem(data=_toy(), rows=40, centred=True, sharing=1)
    recipe = paper_recipe.recipe_for("a-dlista", problem)
    network = paper_recipe.build("a-dlista", problem, 0)
    rates = {group["name"]: group["lr"] for group in paper_recipe.PaperTraining(network).parameter_groups()}
    trainer = recipe.trainer(problem)
    assert rates == {"reconstruction": 1e-2, "augmentation": 1e-3}
    assert (trainer.weight_decay, trainer.batch_size, trainer.schedule, recipe.sharing) == (5e-4, 128, "plateau", 1)
    assert (network.layers, network.loss) == (3, "mse")


def test_a_dlista_starts_where_dlista_starts() -> None:
    """From the thresholds of its own grid on random dictionaries it was slower than DLISTA, whatever it adapted to."""
    problem = ImageProblem(data=_toy(), rows=40, centred=True, sharing=1)
    batch = problem.sample(4, seed=0, split="train")
    plain, adaptive = (paper_recipe.build(name, problem, 0) for name in ("dlista", "a-dlista"))
    assert isinstance(plain, DLISTA)
    assert isinstance(adaptive, ADLISTA)
    for found, layers in zip(zip(*plain.scalars(batch.noise_var), strict=True), ("step", "threshold"), strict=True):
        expected = torch.stack(found).log().mean().exp()
        for layer in adaptive.unroll(batch.y, batch.phi, batch.noise_var):
            torch.testing.assert_close(getattr(layer, layers), expected.expand(4))


def test_the_papers_squared_error_is_a_mean_over_images_and_lista_learns_at_its_own_rate() -> None:
    problem = ImageProblem(data=_toy(), rows=40, centred=True, sharing=1)
    batch = problem.sample(8, seed=0, split="train")
    for name in ("lista", "dlista"):
        network = paper_recipe.build(name, problem, 0)
        training = paper_recipe.PaperTraining(network)
        signal = network.estimate(batch.y, batch.phi, batch.noise_var).signal
        expected = (signal - batch.signal).square().sum(1).mean()
        assert training.training_loss(batch, generator=torch.Generator()).item() == pytest.approx(
            float(expected), rel=1e-5
        )
        assert {group["lr"] for group in training.parameter_groups()} == {1e-3 if name == "lista" else 1e-2}


@pytest.mark.usefixtures("short")
def test_a_cell_of_the_papers_recipe_says_nothing_of_the_time_to_the_printed_figure(tmp_path: Path) -> None:
    assert "seconds_to_printed" not in _run(VARYING, "dlista", "paper", tmp_path, m=100)


def test_images_of_half_size_are_means_of_four_pixels() -> None:
    data = _toy()
    half = data.halved()
    assert half.train.shape == (400, 6, 6)
    expected = data.train[3, 4:6, 8:10].double().mean()
    assert abs(float(half.train[3, 2, 4]) - float(expected)) <= 0.5
    table = Mnist(size="half")
    assert table.measurements == (25, 125, 10)
    assert table.printed_for("lista", 10) is None
    assert Mnist().printed_for("lista", 10) == (0.111, 0.001)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(("name", "layers"), [("alista", 3), ("nalista", 3), ("alista-12", 12), ("nalista-12", 12)])
def test_analytic_networks_have_the_papers_depth_and_ours_say_theirs(name: str, layers: int) -> None:
    problem = ImageProblem(data=_toy(), rows=40, centred=True, fixed_phi_seed=0)
    assert image_models.build(name, problem, 0).layers == layers
    assert name in OURS


def test_lista_starts_as_the_best_linear_estimate_from_what_it_sees() -> None:
    problem = ImageProblem(data=_toy(), rows=40, centred=True)
    psi = image_models.denoising_start(problem, 0)
    batch = problem.sample(400, seed=3, split="train")
    seen = batch.phi.adjoint(batch.y)
    code = torch.zeros_like(seen)
    for _ in range(image_models.LAYERS):
        code = code + (seen - code @ psi.mT) @ psi
    own = (code @ psi.mT - batch.signal).square().sum()
    for factor in (0.8, 1.25):
        assert (factor * code @ psi.mT - batch.signal).square().sum() > own
    assert own < 0.7 * batch.signal.square().sum()
