"""Which experiments, and which of their cells, a command is about."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from vlista_core.experiments import EXPERIMENTS
from vlista_core.experiments.images import SIZES, ImageExperiment
from vlista_core.study import Cell, Study, study_class

Wanted = Mapping[str, Sequence[str | int]]
"""Key of a cell -> its wanted values; none wanted is any."""


def chosen_studies(
    name: str, data: Path | None = None, device: torch.device | str = "cpu", size: str = "full"
) -> list[Study]:
    """The study of a name, or those of "all", which at half size are those of images."""
    if size not in SIZES:
        raise ValueError(f"size must be one of {', '.join(SIZES)}, got {size!r}")
    found = [study_class(each, EXPERIMENTS) for each in (EXPERIMENTS if name == "all" else [name])]
    shared = {"data": data and data.resolve(), "device": str(device)}
    if size == "full":
        return [kind.model_validate(shared) for kind in found]
    images = [kind for kind in found if issubclass(kind, ImageExperiment)]
    if not images:
        raise ValueError(f"{name} has no images, so size must be full, got {size}")
    return [kind.model_validate({**shared, "size": size}) for kind in images]


def folder_of(study: Study) -> str:
    """Where a study lies in the folder of a run."""
    half = isinstance(study, ImageExperiment) and study.size == "half"
    return f"{study.name}-half" if half else study.name


def wanted_studies(name: str, studies: Sequence[Study], wanted: Wanted) -> list[Study]:
    """The studies that have wanted cells; ValueError unless there are some, and each value is one of some cell."""
    where = f"{name} has no cells" if name != "all" else "no experiment has cells"
    for key, values in wanted.items():
        known = list(dict.fromkeys(cell[key] for study in studies for cell in study.cells() if key in cell))
        for value in (value for value in values if value not in known):
            raise ValueError(f"{where} with {key} {value!s}; allowed are {', '.join(map(str, known))}")
    found = [study for study in studies if any(is_wanted(cell, wanted) for cell in study.cells())]
    if not found:
        raise ValueError(f"{name} has no cell with all of these models, measurements and seeds at once")
    return found


def is_wanted(cell: Cell, wanted: Wanted) -> bool:
    """Whether a cell has one of the wanted values of each key."""
    return all(not values or cell.get(key) in values for key, values in wanted.items())


def integers(option: str, text: str | None) -> list[int]:
    """Integers with commas between, none for None, or a ValueError that names the option."""
    try:
        return [] if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} must be integers with commas between, such as 1,10, got {text!r}") from None
