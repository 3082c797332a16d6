"""A study of next to nothing, which workers can import."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field, PrivateAttr

from vlista_core.files import write_text
from vlista_core.study import Cell, Context, Figure, Row, Study, Table
from vlista_core.study.tables import decibels

if TYPE_CHECKING:
    import pandas as pd

REGISTRY = {"toy": "study_toys:Toy", "clock": "study_toys:Clock"}
PIXEL = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x00\x00\x00\x00:~\x9bU\x00\x00\x00\nIDATx"
    b"\x9cc`\x00\x00\x00\x02\x00\x01H\xaf\xa4q\x00\x00\x00\x00IEND\xaeB`\x82"
)


class Toy(Study):
    """Powers of numbers, in dB so to speak."""

    name: ClassVar[str] = "toy"
    summary: ClassVar[str] = "Sums of nothing."
    growing: ClassVar[frozenset[str]] = frozenset({"models", "sizes"})

    models: tuple[str, ...] = ("a", "b")
    sizes: tuple[int, ...] = (1, 2, 3)
    scale: float = 1.0
    failing: tuple[str, ...] = Field(default=(), exclude=True)
    pause: float = Field(default=0.0, exclude=True)
    _own: dict[str, float] = PrivateAttr(default_factory=dict)

    def with_own(self, own: dict[str, float]) -> Toy:
        self._own.update(own)
        return self

    def cells(self) -> list[Cell]:
        return [
            {"model": model, "size": size, "scale": self.scale, "seed": 7}
            for size in self.sizes
            for model in self.models
        ]

    def cell_id(self, cell: Cell) -> str:
        return f"{cell['model']}.{cell['size']}"

    def afresh(self, cell: Cell) -> bool:
        return cell["model"] in self._own

    def run(self, cell: Cell, context: Context) -> Row:
        model, size = str(cell["model"]), int(str(cell["size"]))
        if model in self.failing:
            raise ValueError(f"{model} cannot\nbe run")
        context.report(0.5, "half")
        (context.scratch / f"{self.cell_id(cell)}.kept").write_text("")
        time.sleep(self.pause)
        level = self._own.get(model, -float(len(model) * size)) * self.scale
        return {"level": level, "nested": {"twice": 2 * level, "list": [1, 2]}, "threads": torch.get_num_threads(),
                "budget": {"steps": size}}  # fmt: skip

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        found = {} if frame.empty else frame.set_index(["model", "size"])["level"].to_dict()
        lines = [(model, *(decibels(found.get((model, size))) for size in self.sizes)) for model in self.models]
        first = Table.of("Levels <b>", ("model", *map(str, self.sizes)), lines, bounds=1)
        return [first, Table.of("Again", ("model",), [(model,) for model in self.models], detail=True)]

    def figures(self, frame: pd.DataFrame, folder: Path) -> list[Figure]:
        (folder / "toy.png").write_bytes(PIXEL)
        return [Figure("A picture", "Of nothing.", folder / "toy.png")]

    def headline(self, frame: pd.DataFrame) -> str:
        return f"The best is {frame['level'].min():g}."


class Slow(Toy):
    """Cells that take long enough to be killed."""

    pause: float = Field(default=0.03, exclude=True)


class Clock(Study):
    """Cells that measure time, and values that cannot be kept."""

    name: ClassVar[str] = "clock"
    summary: ClassVar[str] = "What threads there are."

    faults: bool = False

    def cells(self) -> list[Cell]:
        return [{"what": what} for what in (("time", "nan", "key") if self.faults else ("work", "time"))]

    def cell_id(self, cell: Cell) -> str:
        return str(cell["what"])

    def timed(self, cell: Cell) -> bool:
        return cell["what"] == "time"

    def run(self, cell: Cell, context: Context) -> Row:
        if cell["what"] == "key":
            raise KeyError("gone")
        write_text(context.scratch / "last", str(cell["what"]))
        return {"value": float("nan") if cell["what"] == "nan" else 1.0, "threads": torch.get_num_threads()}

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        return [Table.of("Times", ("what",), [(str(what),) for what in frame["what"]])]
