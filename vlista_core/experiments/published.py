"""The figures that the paper prints, to stand beside ours."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

_TABLES = {
    "mnist": "mnist_varying_phi",
    "cifar10": "cifar10_varying_phi",
    "mnist-fixed": "mnist_fixed_phi",
    "cifar10-fixed": "cifar10_fixed_phi",
}
STANDS_FOR = {"a-dlista-adaptive": "a-dlista"}
"""Models of ours that the paper does not have -> the model of the paper whose figure is shown beside them, marked."""


def printed(experiment: str, model: str, measurements: int) -> tuple[float, float] | None:
    """SSIM and its ± in the paper's table of an experiment; None where it prints none."""
    value = _published().get(_TABLES.get(experiment, ""), {}).get(model, {}).get(str(measurements))
    return None if value is None else (float(value[0]), float(value[1]))


def compared(experiment: str, model: str, measurements: int) -> tuple[float, float] | None:
    """What a model is compared with: its own printed figure, or that of the model it `STANDS_FOR`."""
    return printed(experiment, STANDS_FOR.get(model, model), measurements)


def printed_parameters(model: str) -> float | None:
    """Parameters in millions at n = b = 1024, m = 500; None where the paper prints none."""
    value = _published()["parameters_millions"].get(model)
    return None if value is None else float(value)


def printed_latency(model: str, measurements: int) -> float | None:
    """Milliseconds of a batch of 32 on an RTX 2080 Ti; None where the paper prints none."""
    value = _published()["inference_ms_rtx2080ti_batch32"].get(model, {}).get(str(measurements))
    return None if value is None else float(value)


@cache
def _published() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(files(__package__).joinpath("published.json").read_text(encoding="utf-8"))
    return content
