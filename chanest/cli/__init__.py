"""The command line: scenarios and channels, estimators and their evaluation."""

from chanest.cli import calibration, channels, estimators
from chanest.cli.app import app

__all__ = ["app", "calibration", "channels", "estimators"]
