"""Figures of channels, of evaluations and of links. Matplotlib is imported when one is drawn."""

from chanest.plotting.channel import draw_channel
from chanest.plotting.evaluation import draw_accuracy_against_latency, draw_curves
from chanest.plotting.link import draw_link

__all__ = ["draw_accuracy_against_latency", "draw_channel", "draw_curves", "draw_link"]
