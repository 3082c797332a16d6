"""Exported estimators against those in Python, one channel at a time, side by side in one run; and how far they are apart.

The flagship is `gated-lmmse` without its guard: exported, it must not be slower. Recording an estimator takes from seconds to
a minute. With --onnx the networks that have a .onnx form are run by onnxruntime too (extra `export`).

python benchmarks/exported.py [--estimators gated-lmmse,lmmse,…] [--scenario cdl_c_upa64x4] [--onnx]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from timing import best_time
from torch import Tensor

import chanest
from chanest.bases.estimator import ChannelEstimator
from chanest.estimators import estimator_names
from chanest.export import as_received, exported, forms_of
from chanest.problem import ChannelBatch

FLAGSHIP = "gated-lmmse"
_ROUNDS, _APART = 3, 256


def main() -> None:
    every = ",".join([FLAGSHIP, *(name for name in estimator_names() if forms_of(name) and name != FLAGSHIP)])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scenario", default="cdl_c_upa64x4")
    parser.add_argument("--estimators", default=every)
    parser.add_argument("--onnx", action="store_true")
    chosen = parser.parse_args()
    problem = chanest.ChannelProblem(chanest.load_scenario(chosen.scenario))
    print(f"{chosen.scenario}, one channel, {torch.get_num_threads()} threads; apart: worst of {_APART} channels")
    print(f"{'':18} {'Python':>9} {'.pt2':>9} {'ratio':>6} {'apart':>8}")
    for name in chosen.estimators.split(","):
        try:
            estimator = chanest.get_estimator(name, problem, guarded=False, substitute=False)
        except ValueError as fault:
            print(f"{name:18} {fault}")
            continue
        one, many = problem.sample(1, seed=1, snr_db=10.0), problem.sample(_APART, seed=2)
        with tempfile.TemporaryDirectory() as folder:
            path = exported(estimator, problem, Path(folder) / "estimator.pt2")
            core = torch.export.load(path).module()
        given = as_received(one.y, one.phi, one.noise_var)

        def python(estimator: ChannelEstimator = estimator, one: ChannelBatch = one) -> Tensor:
            return estimator.estimate(one.y, one.phi, one.noise_var).signal

        def recorded(core: torch.nn.Module = core, given: tuple[Tensor, ...] = given) -> Tensor:
            with torch.no_grad():
                found: Tensor = core(*given)
            return found

        slow, fast = _side_by_side(python, recorded)
        with torch.no_grad():
            apart = _distance(
                core(*as_received(many.y, many.phi, many.noise_var)),
                estimator.estimate(many.y, many.phi, many.noise_var).signal,
            )
        print(f"{name:18} {1e3 * slow:6.2f} ms {1e3 * fast:6.2f} ms {fast / slow:6.2f} {apart:8.1e}", flush=True)
        if chosen.onnx and "onnx" in forms_of(name):
            _with_onnx(name, estimator, problem, many)


def _side_by_side(*runs: Callable[[], object]) -> list[float]:
    """Seconds of each, the best of a few turns, so that what else the machine does meets all of them."""
    turns = [[best_time(run, 1.0) for run in runs] for _ in range(_ROUNDS)]
    return [min(times) for times in zip(*turns, strict=True)]


def _with_onnx(name: str, estimator: ChannelEstimator, problem: chanest.ChannelProblem, many: ChannelBatch) -> None:
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = exported(estimator, problem, Path(folder) / "estimator.onnx")
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = as_received(many.y, many.phi, many.noise_var)
    real = [torch.view_as_real(each.resolve_conj()) if each.is_complex() else each for each in given]
    names = [each.name for each in session.get_inputs()]
    (h,) = session.run(None, dict(zip(names, (each.numpy() for each in real), strict=True)))
    found = torch.view_as_complex(torch.from_numpy(h))
    wanted = estimator.estimate(many.y, many.phi, many.noise_var).signal
    print(f"{name:18} .onnx {_distance(found, wanted):36.1e}", flush=True)


def _distance(found: Tensor, wanted: Tensor) -> float:
    """‖found - wanted‖/‖wanted‖ of the sample where it is largest."""
    return float(((found - wanted).norm(dim=1) / wanted.norm(dim=1)).max())


if __name__ == "__main__":
    main()
