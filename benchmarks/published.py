"""Ours beside what others published: their code and weights from a clone, on the same draws, in one run.

python benchmarks/published.py NAME --clone PATH [-o docs/results/published] [--samples 300] [--only "20 dB"]

NAME is diffusion, vae, na-alista, lista-cpss or sionna. A folder that holds rows already is continued. Nothing of a clone is
copied anywhere.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

import typer
from publications import PUBLICATIONS
from publications.publication import Harness, Publication

from chanest.studies import STUDIES
from vlista_core.problems import check_count
from vlista_core.study import Options
from vlista_core.study.commands import run_command
from vlista_core.terminal import one_line_errors


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=PUBLICATIONS, help="the publication")
    parser.add_argument("--clone", type=Path, required=True, help="folder with a clone of its repository")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/published"), help="folder of the run")
    parser.add_argument("--samples", type=int, help="draws of each comparison; the recorded number if left out")
    parser.add_argument("--only", help="run comparisons whose name holds these words")
    parser.add_argument("--restart", action="store_true", help="forget first what the folder holds of these")
    chosen = parser.parse_args()
    with one_line_errors():
        if chosen.samples is not None:
            check_count("--samples", chosen.samples)
        study = Harness.of(publication(chosen.name)(chosen.clone), chosen.samples)
        wanted = {str(cell) for cell, name in zip(study.cells(), study.comparisons, strict=True)
                  if chosen.only is None or chosen.only in name}  # fmt: skip
        if not wanted:
            raise ValueError(f"--only must be part of one of {'; '.join(study.comparisons)}, got {chosen.only!r}")
        options = Options(restart=chosen.restart, chosen=lambda cell: str(cell) in wanted)
        run_command(study, chosen.output, STUDIES, options)


def publication(name: str) -> type[Publication]:
    """The class registered under a name."""
    module, _, attribute = PUBLICATIONS[name].partition(":")
    found: type[Publication] = getattr(import_module(module), attribute)
    return found


if __name__ == "__main__":
    try:
        main()
    except typer.Exit as ended:
        raise SystemExit(ended.exit_code) from None
