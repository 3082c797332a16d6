"""Studies: a frozen configuration, independent cells of work, one runner, one store, one page."""

from vlista_core.study.base import Cell, Context, Figure, Row, Study
from vlista_core.study.run import Ended, Options, Result, run_studies, run_study
from vlista_core.study.store import Provenance, Read, Record, Registry, frame, read_study, study_class
from vlista_core.study.tables import Table, print_table

__all__ = [
    "Cell", "Context", "Ended", "Figure", "Options", "Provenance", "Read", "Record", "Registry", "Result", "Row",
    "Study", "Table", "frame", "print_table", "read_study", "run_studies", "run_study", "study_class",
]  # fmt: skip
