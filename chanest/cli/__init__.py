"""The command line: scenarios and channels, estimators, their variances and evaluation, a coded link."""

from chanest.cli import calibration, channels, estimators, link
from chanest.cli.app import app

__all__ = ["app", "calibration", "channels", "estimators", "link"]
