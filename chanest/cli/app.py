"""The application that all commands belong to."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    name="chanest",
    help="Wireless MIMO channel estimation: scenarios, channels, estimators.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Name = Annotated[str, typer.Argument(help="A shipped scenario (see `chanest scenarios`) or the path of a .toml file.")]


@app.callback()
def _main() -> None:
    """Wireless MIMO channel estimation: scenarios, channels, estimators."""
