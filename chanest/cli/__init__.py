"""The command line: scenarios and channels, estimators and their evaluation, a coded link."""

from chanest.cli import channels, estimators, link
from chanest.cli.app import app

__all__ = ["app", "channels", "estimators", "link"]
