"""Figures of channels and of studies."""
