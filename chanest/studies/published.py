"""Published results beside ours: theirs as printed, theirs as run here, ours and a bound on the same draws.

The rows come from `benchmarks/published.py`, which runs the code of others from a clone that the user made. This is what their
folder is, and how it is shown.
"""

from typing import ClassVar

import pandas as pd

from vlista_core.study import Cell, Context, Row, Study, Table
from vlista_core.study.tables import decibels, milliseconds, number
from vlista_core.tensorfile import Json

PARTS = ("publication", "setting", "at", "samples")
"""What a comparison is, in its name and in its cell."""
_SEPARATOR = " | "
DECIBELS = "NMSE (dB)"


class PublishedStudy(Study):
    """Comparisons by name: "publication | setting | at | samples"; a row has what `theirs`, `ours` and `bounds` reached."""

    name: ClassVar[str] = "published"
    summary: ClassVar[str] = (
        "One line per published result. Printed: in the paper, or in the results that its repository holds; here: their code "
        "and weights on the draws of this run; ours: the best of ours on the same draws. Milliseconds are process time of one "
        "thread, per sample, measured in turn. Lower is better."
    )
    growing: ClassVar[frozenset[str]] = frozenset({"comparisons"})

    comparisons: tuple[str, ...]

    def title(self) -> str:
        return "Against what others published"

    def cells(self) -> list[Cell]:
        return [cell_of(comparison) for comparison in self.comparisons]

    def run(self, cell: Cell, context: Context) -> Row:
        raise ValueError(f"a comparison is run by: python benchmarks/published.py {cell['publication']} --clone PATH")

    def describe(self, cell: Cell, row: Row) -> str:
        return " ".join(
            f"{each['name']} {_level(each['found'], str(row['measure']))}" for each in _entries(row, "ours")
        )

    def headline(self, frame: pd.DataFrame) -> str:
        if frame.empty:
            return ""
        overview = _overview(frame)
        return f"Ours are better in {len(overview.marked)} of {len(overview.lines)} published results as run here."

    def tables(self, frame: pd.DataFrame) -> list[Table]:
        """One line per published result, then everything of each publication."""
        if frame.empty:
            return []
        names = list(dict.fromkeys(frame["publication"]))
        return [_overview(frame), *(_whole(name, frame[frame["publication"] == name]) for name in names)]


def comparison(publication: str, setting: str, at: str, samples: int) -> str:
    """The name of a comparison."""
    return _SEPARATOR.join((publication, setting, at, str(samples)))


def cell_of(name: str) -> Cell:
    """The cell of a comparison, or a ValueError."""
    parts = name.split(_SEPARATOR)
    if len(parts) != len(PARTS) or not parts[-1].isdigit():
        raise ValueError(f"comparisons must read {_SEPARATOR.join(PARTS)}, got {name!r:.80}")
    return {**dict(zip(PARTS, parts, strict=True)), "samples": int(parts[-1])}


def _entries(row: "Row | pd.Series", kind: str) -> list[dict[str, Json]]:
    found = row[kind]
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _best(row: pd.Series, kind: str) -> dict[str, Json] | None:
    known = [each for each in _entries(row, kind) if each["found"] is not None]
    return min(known, key=lambda each: float(str(each["found"])), default=None)


def _overview(frame: pd.DataFrame) -> Table:
    heading = ("published result", "printed", "here", "ours", "bound", "ms theirs", "ms ours")
    lines: list[tuple[str, ...]] = []
    marked = set[tuple[int, int]]()
    for _, row in frame.iterrows():
        ours, bound = _best(row, "ours"), _best(row, "bounds")
        for each in _entries(row, "theirs"):
            name = f"{row['publication']}, {row['setting']}, {row['at']}: {each['name']}"
            levels = [_level(each.get(key), row["measure"]) for key in ("printed", "found")]
            own = "–" if ours is None else f"{_level(ours['found'], row['measure'])} ({ours['name']})"
            limit = "–" if bound is None else _level(bound["found"], row["measure"])
            times = [milliseconds(_float(who.get("ms"))) if who else "–" for who in (each, ours)]
            if ours is not None and each["found"] is not None and _value(ours) < _value(each):
                marked.add((len(lines), 3))
            lines.append((name, *levels, own, limit, *times))
    return Table.of("Published results", heading, lines, marked=frozenset(marked))


def _whole(name: str, frame: pd.DataFrame) -> Table:
    """Every method of a publication's comparisons."""
    heading = ("setting", "at", "method", "whose", "printed", "here", "ms", "trained for")
    lines: list[tuple[str, ...]] = []
    for _, row in frame.iterrows():
        for kind, whose in (("theirs", "theirs"), ("ours", "ours"), ("bounds", "bound")):
            for each in _entries(row, kind):
                levels = [_level(each.get(key), row["measure"]) for key in ("printed", "found")]
                spent = each.get("budget")
                known = spent.items() if isinstance(spent, dict) else ()
                words = ", ".join(f"{key} {value}" for key, value in known) or "–"
                time = milliseconds(_float(each.get("ms")))
                lines.append((row["setting"], row["at"], str(each["name"]), whose, *levels, time, words))
    measures = ", ".join(dict.fromkeys(str(each) for each in frame["measure"]))
    return Table.of(f"{name}, {measures}", heading, lines, detail=True)


def _level(value: Json, measure: str) -> str:
    known = _float(value)
    return decibels(known, 2) if measure == DECIBELS else number(known, ".4f")


def _value(entry: dict[str, Json]) -> float:
    return float(str(entry["found"]))


def _float(value: Json) -> float | None:
    return None if value is None else float(str(value))
