"""The command line: scenarios and channels, estimators and their evaluation."""

from chanest.cli import channels, estimators, tracking
from chanest.cli.app import app

__all__ = ["app", "channels", "estimators", "tracking"]
