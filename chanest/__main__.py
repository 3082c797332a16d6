"""`python -m chanest` is the command line."""

from chanest.cli import app

app()
