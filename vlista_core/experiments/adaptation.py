"""What A-DLISTA's step and threshold adapt to, and what that is worth: against DLISTA at equal budgets, by both recipes.

DLISTA is A-DLISTA without the augmentation network. It is given as many images as A-DLISTA, and beside that as many seconds.
For each A-DLISTA the same dictionaries are tested once more with steps and thresholds held at their means over validation
images: what is lost is what adapting to a sample gives; the rest of the lead is what the network did for the training. Gaussian
matrices hardly differ in anything that a step could follow, so there is a second kind of Φ, whose power differs from sample to
sample.
"""

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import torch

from vlista_core.data.image_problem import ImageProblem
from vlista_core.experiments import image_loss, image_models, paper_recipe, recipes
from vlista_core.experiments.experiment import identity, rows_by
from vlista_core.experiments.images import SIZES, ImageExperiment, images_of, measure
from vlista_core.experiments.paper_recipe import PaperRecipe
from vlista_core.experiments.recipes import Recipe
from vlista_core.models import ADLISTA, DLISTA, UnfoldedModel
from vlista_core.models.layer import LayerChoice
from vlista_core.plotting import new_figure
from vlista_core.study import Cell, Context, Figure, Row, Table
from vlista_core.study.measuring import finite
from vlista_core.study.tables import number

POWERS_DB = {"equal": 0.0, "varying": 6.0}
"""Kind of Φ -> half the range of its power in dB."""
BUDGETS = ("images", "seconds")
SECONDS = {"paper": 4, "ours": 2}
"""Steps of DLISTA in the time of a step of A-DLISTA, about; rows print the seconds."""
SHOWN = 200
"""Test images whose steps and thresholds are kept."""
_COLOURS = ("#0072b2", "#c8500a", "#00805f")
"""Of the layers."""


class Adaptation(ImageExperiment):
    """The paper's main ablation."""

    name: ClassVar[str] = "adaptation"
    summary: ClassVar[str] = "A-DLISTA against DLISTA at equal budgets, and what its steps and thresholds follow."
    at_half_size: ClassVar[dict[str, Any]] = {"measurements": 25}

    models: tuple[str, ...] = ("dlista", "a-dlista")
    measurements: int = 100
    seeds: int = 3
    steps: int = 1500
    test_images: int = 1000

    def cells(self) -> list[Cell]:
        """A-DLISTA has one budget: it sets both."""
        cells = self.model_cells(seed=range(self.seeds), measurements=[self.measurements], power=POWERS_DB)
        return [
            {**cell, "equal": budget} for cell in cells for budget in BUDGETS
            if budget == "images" or cell["model"] == "dlista"
        ]  # fmt: skip

    def run(self, cell: Cell, context: Context) -> Row:
        _, m, seed = identity(cell)
        problem = ImageProblem(
            data=images_of("mnist", self.data, self.size), rows=m, centred=True, sharing=1, device=self.device,
            power_db=POWERS_DB[str(cell["power"])],
        )  # fmt: skip
        weights = context.scratch / f"{self.cell_id(cell)}.safetensors"
        network, details = self._trained(cell, problem, weights)
        home = problem.on("cpu")
        found = measure(network, home, seed, self.test_images)
        if not isinstance(network, ADLISTA):
            return {**found, **details}
        held = measure(held_at_means(network, home, seed), home, seed, self.test_images)
        return {**found, **details, "held_ssim": held["ssim"], **followed(network, home, seed)}

    def _trained(self, cell: Cell, problem: ImageProblem, weights: Path) -> tuple[UnfoldedModel, Row]:
        model, _, seed = identity(cell)
        recipe = str(cell["recipe"])
        steps = self.steps * (SECONDS[recipe] if cell["equal"] == "seconds" else 1)
        if recipe == "paper":
            made: Recipe[ImageProblem] = PaperRecipe(steps, until_plateau=False)
            build, train = partial(paper_recipe.build, model), paper_recipe.train
        else:
            made = replace(image_models.OURS["dlista"], steps=steps)
            problem = replace(problem, sharing=made.sharing)
            build, train = partial(image_models.build, model), image_loss.train
        network, details = recipes.fit(made, build, problem, seed, weights, train)
        assert isinstance(network, UnfoldedModel)
        return network, details

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        keys = ("power", "recipe", "model", "equal")
        kinds = list(dict.fromkeys(tuple(str(cell[key]) for key in keys) for cell in self.cells()))
        found: dict[Any, pd.DataFrame] = {} if frame.empty else dict(list(frame.groupby(list(keys))))
        lines = [self._line(kind, found.get(kind, pd.DataFrame())) for kind in kinds]
        heading = (
            "Φ", "recipe", "model", "SSIM ± half the range", "held at the means", "γ varies by", "θ varies by", "seeds",
            "steps", "images seen", "training (s)",
        )  # fmt: skip
        title = (
            f"MNIST{SIZES[self.size]}, m = {self.measurements}: A-DLISTA and DLISTA at equal budgets; γ and θ vary by the "
            "coefficient of variation over test images, of the layer where it is largest"
        )
        return [Table.of(title, heading, lines)]

    def _line(self, kind: tuple[str, ...], rows: pd.DataFrame) -> tuple[str, ...]:
        """A line of the table from the rows of its seeds. kind: power, recipe, model, what is equal."""
        power, recipe, model, equal = kind
        name = model if model == "a-dlista" else f"{model}, equal {equal}"
        if rows.empty:
            return (f"{power} power", recipe, name, *["–"] * 4, f"0 of {self.seeds}", *["–"] * len(_BUDGET))
        spread = (rows["ssim"].max() - rows["ssim"].min()) / 2
        adapted = ["–"] * 3
        if model == "a-dlista":
            varied = [f"{100 * rows[f'variation.{key}'].map(max).mean():.1f} %" for key in _KEYS]
            adapted = [number(rows["held_ssim"].mean(), ".3f"), *varied]
        spent = [number(rows[f"budget.{key}"].mean(), ",.0f") for key in _BUDGET]
        figure = f"{rows['ssim'].mean():.3f} ± {spread:.3f}"
        return (f"{power} power", recipe, name, figure, *adapted, f"{len(rows)} of {self.seeds}", *spent)

    def figures(self, frame: pd.DataFrame, folder: Path) -> list[Figure]:
        found = {
            key: row for key, row in rows_by(frame, "model", "recipe", "power", "seed").items() if key[0] == "a-dlista"
        }
        if not found:
            return []
        path = folder / "adaptation.png"
        panels = [key for key in itertools.product(["a-dlista"], self.recipes, POWERS_DB, [0]) if key in found]
        with new_figure(path, (3.4 * max(1, len(panels)), 6.0)) as figure:
            grid = figure.subplots(2, max(1, len(panels)), squeeze=False)
            for column, key in enumerate(panels):
                for row, (name, symbol) in enumerate(_KEYS.items()):
                    axes = grid[row][column]
                    powers = found[key]["points.power_db"]
                    for layer, values in enumerate(found[key][f"points.{name}"]):
                        axes.scatter(powers, values, s=6, alpha=0.6, color=_COLOURS[layer], label=f"layer {layer + 1}")
                    axes.set(
                        xlabel="power of Φ (dB)", ylabel=symbol, title=f"{key[1]}, {key[2]} power" if row == 0 else ""
                    )
                    axes.grid(alpha=0.25)
            grid[0][0].legend(frameon=False, fontsize=8)
        caption = (
            "Steps γ and thresholds θ that the augmentation network gives test images, against ‖Φ‖²/n of the image's matrix. "
            "Left to right: both recipes, Φ of equal and of varying power."
        )
        return [Figure("What the steps and thresholds of A-DLISTA follow", caption, path)]


_KEYS = {"step": "step γ", "threshold": "threshold θ"}
_BUDGET = ("steps", "samples", "seconds")


@torch.no_grad()
def held_at_means(network: ADLISTA, problem: ImageProblem, seed: int) -> DLISTA:
    """DLISTA with the dictionaries of an A-DLISTA, and its steps and thresholds at their means over validation images."""
    batch = problem.sample(SHOWN, seed=seed, split="validation")
    layers = network.unroll(batch.y, batch.phi, batch.noise_var)
    held = DLISTA(network.dictionaries[0], layers=network.layers)  # type: ignore[arg-type]
    held.dictionaries.load_state_dict(network.dictionaries.state_dict())
    held.start_at([LayerChoice(0.0, float(each.step.mean()), float(each.threshold.mean())) for each in layers])
    return held


@torch.no_grad()
def followed(network: ADLISTA, problem: ImageProblem, seed: int) -> Row:
    """Steps and thresholds of test images, layer by layer: how much they vary, and the points of a figure."""
    batch = problem.sample(SHOWN, seed=seed, split="test")
    layers = network.unroll(batch.y, batch.phi, batch.noise_var)
    power = batch.phi.materialize().square().sum((1, 2)) / problem.signal_length
    values = {key: torch.stack([getattr(each, key).expand(SHOWN) for each in layers]) for key in _KEYS}
    return {
        "variation": {
            key: [finite(v, 4) for v in (each.std(1) / each.mean(1)).tolist()] for key, each in values.items()
        },
        "points": {
            "power_db": [finite(level, 3) for level in (10.0 * power.log10()).tolist()],
            **{key: [[finite(v, 5) for v in layer] for layer in each.tolist()] for key, each in values.items()},
        },
    }
