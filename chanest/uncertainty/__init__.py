"""Variances that can be trusted: estimates with variances, their calibration, and noise that nobody knows."""
