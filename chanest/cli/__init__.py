"""The command line: scenarios and channels, estimators and their evaluation, variances, frames over time."""

from chanest.cli import calibration, channels, estimators, tracking
from chanest.cli.app import app

__all__ = ["app", "calibration", "channels", "estimators", "tracking"]
