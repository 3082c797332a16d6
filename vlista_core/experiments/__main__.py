"""`python -m vlista_core.experiments` is the command line."""

from vlista_core.experiments.cli import app

app()
