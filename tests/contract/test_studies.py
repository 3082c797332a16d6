"""Every registered study, and every recorded run of one, meets the contract of studies."""

from __future__ import annotations

from pathlib import Path

import pytest

from chanest.studies import STUDIES
from vlista_core.experiments import EXPERIMENTS
from vlista_core.study import Provenance, frame, read_study, study_class
from vlista_core.study.page import markdown

REGISTRY = {**STUDIES, **EXPERIMENTS}
RESULTS = Path(__file__).parents[2] / "docs" / "results"
RECORDED = sorted(path.parent.relative_to(RESULTS).as_posix() for path in RESULTS.rglob("study.json"))


@pytest.mark.parametrize("name", REGISTRY)
def test_a_study_is_frozen_and_says_what_it_is(name: str) -> None:
    cls = study_class(name, REGISTRY)
    assert cls.name == name
    assert cls.summary.endswith(".")
    assert "\n" not in cls.summary
    assert cls.model_config["frozen"]
    assert cls.model_config["extra"] == "forbid"
    assert cls.growing <= set(cls.model_fields)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_cells_of_an_experiment_have_names_and_seeds_of_their_own(name: str) -> None:
    study = study_class(name, REGISTRY)()
    cells = study.cells()
    assert len({study.cell_id(cell) for cell in cells}) == len(cells)
    assert all(isinstance(cell["seed"], int) for cell in cells)
    assert study.tables(frame([])) is not None


@pytest.mark.parametrize("folder", RECORDED)
def test_a_recorded_run_is_read_and_shown(folder: str) -> None:
    read = read_study(RESULTS / folder, REGISTRY)
    assert type(read.study).model_validate_json(read.study.model_dump_json()) == read.study
    assert len(read.frame) == len(read.records) > 0
    columns = {".".join(str(column).split(".")[:2]) for column in read.frame}
    assert {f"provenance.{field}" for field in Provenance.model_fields} <= columns
    tables = read.study.tables(read.frame)
    assert tables
    assert all(table.lines for table in tables)
    if type(read.study).name in STUDIES:
        said = read.study.headline(read.frame)
        assert said.endswith("."), "every command ends with its figure"
    assert (RESULTS / folder / "table.md").read_text(encoding="utf-8") == markdown(read.study, read.frame)
