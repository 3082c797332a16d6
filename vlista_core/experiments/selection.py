"""Which cells a command means, or one sentence that says what is allowed."""

from __future__ import annotations

from collections.abc import Sequence

from vlista_core.experiments import Cell, experiment_names, get_experiment


def select_cells(
    name: str,
    *,
    models: Sequence[str] | None = None,
    measurements: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Cell]:
    """The cells of an experiment, or of "all", that have one of the given values; None takes every value.

    The cells of several experiments are interleaved, so that the most important of each come before the rest of any.
    """
    ranked: list[tuple[float, Cell]] = []
    for each in experiment_names() if name == "all" else [name]:
        cells = get_experiment(each).cells()
        ranked += [(rank / len(cells), cell) for rank, cell in enumerate(cells)]
    cells = [cell for _, cell in sorted(ranked, key=lambda pair: pair[0])]
    chosen = {"model": models, "measurements": measurements, "seed": seeds}
    for key, wanted in chosen.items():
        if wanted is not None:
            _check(name, key, wanted, cells)
            cells = [cell for cell in cells if cell[key] in wanted]
    if not cells:
        raise ValueError(f"{name} has no cell with all of these models, measurements and seeds at once")
    return cells


def integers(option: str, text: str) -> list[int]:
    """Integers with commas between, or a ValueError that names the option."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{option} must be integers with commas between, such as 1,10, got {text!r}") from None


def _check(name: str, key: str, wanted: Sequence[str | int], cells: list[Cell]) -> None:
    known = list(dict.fromkeys(cell[key] for cell in cells))
    for value in wanted:
        if value not in known:
            where = f"{name} has no cells" if name != "all" else "no experiment has cells"
            words = "measurements" if key == "measurements" else key
            raise ValueError(f"{where} with {words} {value!s}; allowed are {', '.join(str(each) for each in known)}")
