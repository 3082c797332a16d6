"""An experiment of the paper's kind: models × numbers of measurements × seeds, ours beside what the paper prints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vlista_core.experiments.base import Cell, Done, Experiment, Figure, number
from vlista_core.experiments.curves import Curve, draw_panels
from vlista_core.experiments.published import STANDS_FOR, compared, printed
from vlista_core.tables import Table, signed


class TableExperiment(Experiment):
    """One of the paper's tables of SSIM. A subclass names its rows and columns and says how a cell is run."""

    title: str
    """Of its tables and figures, such as "MNIST, a Φ for each image"."""
    models: tuple[str, ...]
    """Rows, in the order of the table."""
    measurements: tuple[int, ...] = (1, 10, 100, 300, 500)
    first: tuple[int, ...] = (100, 500, 300, 10, 1)
    """The same, the most important first."""
    repeats: Mapping[int, int] = {100: 3}
    """Training seeds at a number of measurements; one elsewhere."""

    def cells(self) -> list[Cell]:
        """Seed by seed, number of measurements by number of measurements, all models of each together."""
        return [
            {"experiment": self.name, "model": model, "measurements": m, "seed": seed}
            for seed in range(max(self.repeats.values(), default=1))
            for m in self.first
            if seed < self._repeats(m)
            for model in self.models
        ]

    def tables(self, done: Done) -> list[Table]:
        return [self._overview(done), *(self._at(done, m) for m in self.measurements)]

    def figures(self, done: Done, folder: Path) -> list[Figure]:
        curves = []
        for model in self.models:
            ours = [(float(m), mean) for m in self.measurements if (mean := self._mean(done, model, m)) is not None]
            paper = [(float(m), found[0]) for m in self.measurements if (found := printed(self.name, model, m))]
            curves += [Curve(model, ours)] if ours else []
            curves += [Curve(model, paper, printed=True)] if paper and ours else []
        if not curves:
            return []
        path = folder / f"{self.name}.png"
        draw_panels(
            path, {"": curves}, title=f"{self.title}: SSIM of test images", x_label="measurements m",
            y_label="SSIM", x_ticks=[float(m) for m in self.measurements], log_x=True,
        )  # fmt: skip
        caption = (
            "Filled marks: ours, mean over the test images and the seeds. Hollow marks, dashed: printed in the paper."
        )
        return [Figure(f"{self.title}: SSIM by number of measurements", caption, path)]

    def _repeats(self, m: int) -> int:
        return self.repeats.get(m, 1)

    def _overview(self, done: Done) -> Table:
        lines = []
        for model in self.models:
            pairs = [(self._mean(done, model, m), compared(self.name, model, m)) for m in self.measurements]
            texts = [f"{ssim(ours)} ({ssim(paper and paper[0])}{_mark(model)})" for ours, paper in pairs]
            lines.append((model, *texts))
        title = f"{self.title}: SSIM, ours (paper's){self._note()}"
        return Table(title, ("model", *(f"m = {m}" for m in self.measurements)), tuple(lines))

    def _at(self, done: Done, m: int) -> Table:
        heading = ("model", "ours", "paper", "difference", "seeds", "spread", "test images", "training (s)")
        lines = tuple(self._line(done, model, m) for model in self.models)
        return Table(f"{self.title}, m = {m}: SSIM{self._note()}", heading, lines)

    def _line(self, done: Done, model: str, m: int) -> tuple[str, ...]:
        found = _found(done, model, m)
        mean, paper = self._mean(done, model, m), compared(self.name, model, m)
        values = sorted(value for cell in found if (value := number(cell, "ssim")) is not None)
        images = {f"{number(cell, 'test_samples') or 0:,.0f}" for cell in found}
        return (
            model,
            _with_error(mean, _average([number(cell, "ssim_error") for cell in found])),
            f"{_with_error(*paper)}{_mark(model)}" if paper else "–",
            signed(mean - paper[0], 3) if mean is not None and paper else "–",
            f"{len(found)} of {self._repeats(m)}",
            f"{values[0]:.3f} … {values[-1]:.3f}" if len(values) > 1 else "–",
            ", ".join(sorted(images)) or "–",
            seconds(_average([number(cell, "train_seconds") for cell in found])),
        )

    def _mean(self, done: Done, model: str, m: int) -> float | None:
        """SSIM averaged over the seeds that are done."""
        return _average([number(cell, "ssim") for cell in _found(done, model, m)])

    def _note(self) -> str:
        others = [f"† printed for {STANDS_FOR[model]}" for model in self.models if model in STANDS_FOR]
        return f" ({', '.join(others)})" if others else ""


def ssim(value: float | None) -> str:
    """Three digits; a dash where there is none."""
    return "–" if value is None else f"{value:.3f}"


def seconds(value: float | None) -> str:
    """A duration in whole seconds."""
    return "–" if value is None else f"{value:.0f}"


def _found(done: Done, model: str, m: int) -> Done:
    return [cell for cell in done if cell["model"] == model and cell["measurements"] == m]


def _average(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _with_error(mean: float | None, error: float | None) -> str:
    return ssim(mean) if mean is None or error is None else f"{mean:.3f} ± {error:.3f}"


def _mark(model: str) -> str:
    return "†" if model in STANDS_FOR else ""
