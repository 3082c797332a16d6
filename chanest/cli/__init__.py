"""The command line: scenarios and channels, estimators and their evaluation, novelty."""

from chanest.cli import channels, estimators, novelty
from chanest.cli.app import app

__all__ = ["app", "channels", "estimators", "novelty"]
