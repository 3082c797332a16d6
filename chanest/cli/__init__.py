"""The command line: scenarios and channels, estimators and their evaluation, variances, frames over time, novelty, link."""

from chanest.cli import calibration, channels, estimators, link, novelty, tracking
from chanest.cli.app import app

__all__ = ["app", "calibration", "channels", "estimators", "link", "novelty", "tracking"]
