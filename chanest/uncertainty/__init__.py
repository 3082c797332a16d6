"""Variances, intervals and unknown noise."""
