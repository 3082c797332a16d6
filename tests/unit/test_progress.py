"""Bars: figures are whole at any width, what is not known yet is not shown, the time left says so."""

from __future__ import annotations

import io
import math
import re

import pytest
from rich.console import Console

from vlista_core.progress import DoneColumn, bar_with, clock, known_figures

TITLE = "a-dlista-adaptive.at_10.snr_10: validation -14.8 dB, 1234 samples/s, and many more words"


@pytest.mark.parametrize("width", [50, 80, 200])
def test_figures_are_whole_however_narrow_the_terminal(width: int) -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=width, force_terminal=True)
    now = iter(float(second) for second in range(0, 10_000, 60))
    with bar_with(DoneColumn(), console=console, disable=False) as bar:
        bar.get_time = lambda: next(now)
        counted = bar.add_task(TITLE, total=None)
        shared = bar.add_task(TITLE, total=1.0, share=True)
        assert "nan" not in _last(screen, bar.refresh)
        for done in (10, 20, 31):
            bar.update(counted, completed=done, total=71)
            bar.update(shared, completed=done / 71)
        shown = _last(screen, bar.refresh)
    assert "31/71" in shown
    assert " 44 %" in shown
    assert shown.count(" left") == 2
    assert all(len(line) <= width for line in shown.splitlines())
    assert (TITLE in shown) == (width == 200)


def test_figures_that_are_not_known_are_left_out() -> None:
    assert known_figures(loss=0.25, validation=math.nan) == "loss 0.25"
    assert known_figures(loss=math.nan, validation=math.nan) == "training"


@pytest.mark.parametrize(("seconds", "said"), [(0, "0:00"), (6.2, "0:07"), (750, "12:30"), (11_100, "3:05:00")])
def test_times_are_written_as_on_a_clock(seconds: float, said: str) -> None:
    assert clock(seconds) == said


def _last(screen: io.StringIO, refresh: object) -> str:
    """What a refresh draws, without colours."""
    assert callable(refresh)
    screen.seek(0)
    screen.truncate()
    refresh()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
