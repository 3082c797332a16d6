"""Figures of channels and of evaluations. Matplotlib is imported when one is drawn."""

from chanest.plotting.channel import draw_channel
from chanest.plotting.evaluation import draw_accuracy_against_latency, draw_curves

__all__ = ["draw_accuracy_against_latency", "draw_channel", "draw_curves"]
