"""A small problem and small models to train; run as a script, it is killed and resumed, or run under torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vlista_core import checkpoint
from vlista_core.checkpoint import register_model
from vlista_core.configured import Configured
from vlista_core.draws import Split, sample_generators
from vlista_core.estimate import Estimate, Estimator, Measurement
from vlista_core.linops import DenseMap, LinearMap
from vlista_core.problems import Batch, Problem
from vlista_core.tensorfile import Json
from vlista_core.training import Trainer, TrainingResult


class ToyProblem(Problem):
    """Signals with a few large entries, a fresh Gaussian Φ for each, little noise."""

    def __init__(self, dtype: torch.dtype = torch.float32, measurements: int = 8, signal_length: int = 12) -> None:
        self._dtype, self._m, self._n = dtype, measurements, signal_length
        self.calls: list[tuple[str, int, int, int]] = []
        self.fails_from: int | None = None
        """The first training sample that cannot be drawn."""

    @property
    def signal_length(self) -> int:
        return self._n

    @property
    def measurements(self) -> int:
        return self._m

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def sample(
        self, count: int, *, seed: int, split: Split = "test", start: int = 0, snr_db: float | None = None
    ) -> Batch:
        self.calls.append((split, start, count, seed))
        if split == "train" and self.fails_from is not None and start >= self.fails_from:
            raise OSError("the data is gone")
        phi, signal, noise = [], [], []
        for generator in sample_generators(seed, split, range(start, start + count)):
            draw: dict[str, Any] = {"dtype": self._dtype, "generator": generator}
            phi.append(torch.randn(self._m, self._n, **draw) / self._m**0.5)
            signal.append(torch.randn(self._n, **draw) * (torch.rand(self._n, generator=generator) < 0.3))
            noise.append(0.01 * torch.randn(self._m, **draw))
        s, matrix = torch.stack(signal), DenseMap(torch.stack(phi))
        noise_var = torch.full((count,), 1e-4, dtype=s.real.dtype)
        return Batch(signal=s, y=matrix.apply(s) + torch.stack(noise), phi=matrix, noise_var=noise_var)


@register_model
class ToyModel(nn.Module, Estimator, Configured):
    """Three gradient steps in a learned basis; complex parameters are real pairs, and one parameter is never used."""

    def __init__(self, n: int = 12, *, dtype: str = "float32", noise: float = 0.0, poison: float = 0.0) -> None:
        super().__init__()
        self.n, self.dtype, self.noise, self.poison = n, dtype, noise, poison
        kind: torch.dtype = getattr(torch, dtype)
        generator = torch.Generator().manual_seed(0)
        psi = torch.eye(n, dtype=kind) + 0.1 * torch.randn(n, n, dtype=kind, generator=generator)
        self.psi = nn.Parameter(torch.view_as_real(psi).clone() if psi.is_complex() else psi)
        self.step = nn.Parameter(torch.tensor(0.3, dtype=psi.real.dtype))
        self.unused = nn.Parameter(torch.ones(2))
        self.standard: Tensor
        self.register_buffer("standard", torch.linspace(0.5, 1.5, n, dtype=kind))
        self.steps_seen: list[int] = []

    def forward(self, y: Tensor, phi: LinearMap) -> Tensor:
        psi = torch.view_as_complex(self.psi) if self.psi.ndim == 3 else self.psi
        code = torch.zeros(y.shape[0], self.n, dtype=y.dtype, device=y.device)
        for _ in range(3):
            code = code + self.step * phi.adjoint(y - phi.apply(code @ psi.mT)) @ psi.conj()
        return code @ psi.mT

    def estimate(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Estimate:
        given = Measurement.checked(y, phi, noise_var)
        return Estimate(self(given.y, given.phi))

    def training_loss(self, batch: Batch, *, generator: torch.Generator) -> Tensor:
        loss: Tensor = (self(batch.y, batch.phi) - batch.signal).abs().square().sum(1).mean()
        if self.noise:
            shape = self.psi.shape
            loss = loss + self.noise * (torch.randn(shape, generator=generator, dtype=self.psi.dtype) * self.psi).sum()
        if self.poison:
            loss = loss / (torch.rand((), generator=generator) >= self.poison)
        return loss


def trained(model: nn.Module, problem: Problem | None = None, **settings: Any) -> TrainingResult:
    """Fit with short settings. seed, checkpoint and resume may be among the settings."""
    run: dict[str, Any] = {name: settings.pop(name) for name in ("seed", "checkpoint", "resume") if name in settings}
    defaults = {"batch_size": 16, "validation_samples": 40, "validate_every": 5, "learning_rate": 1e-2}
    if not {"steps", "epochs", "seconds"} & settings.keys():
        settings["steps"] = 20
    return Trainer(**(defaults | settings)).fit(model, problem or ToyProblem(), **({"seed": 1} | run))


_STEPS, _EVERY = 200, 5


def _resumable(folder: Path, out: str, path: Path | None, report: int, *, die_in_write: bool = False) -> int:
    """Fork a process that trains to its end and saves the model, and reports every validation; its process id."""
    child = os.fork()
    if child:
        return child
    model, problem = ToyModel(noise=1e-3, poison=0.03), ToyProblem()
    if die_in_write:
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)

    def metric(signal: Tensor, batch: Batch) -> float:
        os.write(report, b".")
        return (signal - batch.signal).abs().square().mean().item()

    settings = {"steps": _STEPS, "validate_every": _EVERY, "validation_samples": 16, "retries": 50, "clip_norm": 1.0}
    result = trained(model, problem, **settings, metric=metric, checkpoint=path, resume=path is not None)
    checkpoint.save(model, folder / out, provenance={"messages": list(result.messages), "best": result.best_validation})
    os._exit(0)


def kill_and_resume(folder: Path) -> None:
    """Train once undisturbed and once with SIGKILLs at random moments and inside a write; print how it went."""
    heard, report = os.pipe()
    started = time.perf_counter()
    os.waitpid(_resumable(folder, "whole.safetensors", None, report), 0)
    between = (time.perf_counter() - started) * _EVERY / _STEPS
    chance, path, codes = random.Random(3), folder / "run.safetensors", []
    for attempt in range(9):
        in_write, last = attempt in (1, 4), attempt == 8
        os.set_blocking(heard, False)
        with contextlib.suppress(BlockingIOError):
            os.read(heard, 10_000)
        os.set_blocking(heard, True)
        child = _resumable(folder, "killed.safetensors", path, report, die_in_write=in_write)
        if not in_write and not last:
            for _ in range(chance.randrange(5)):
                os.read(heard, 1)
            time.sleep(chance.uniform(0.0, 1.5) * between)
            os.kill(child, signal.SIGKILL)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    sys.stdout.write(json.dumps(codes))


def distributed(folder: Path) -> None:
    """Train under torchrun; rank 0 writes the weights and the losses."""
    rank = int(os.environ.get("RANK", "0"))
    settings: dict[str, Any] = {"slices": 2, "steps": 30}
    broken = ToyProblem()
    broken.fails_from = 16 * 18
    with contextlib.suppress(OSError):
        trained(ToyModel(noise=1e-3), broken, **settings, checkpoint=folder / "resumed.run")
    for name, noise in (("plain", 0.0), ("noisy", 1e-3), ("resumed", 1e-3)):
        model = ToyModel(noise=noise)
        path = folder / f"{name}.run"
        result = trained(model, **settings, checkpoint=path, resume=name == "resumed")
        if rank == 0:
            losses: list[Json] = [[record.loss, record.validation] for record in result.history]
            checkpoint.save(model, folder / f"{name}.safetensors", provenance={"losses": losses})
    timed = trained(ToyModel(), seconds=0.5, schedule="cosine")
    (folder / f"seconds.{rank}").write_text(str(timed.steps))


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"kill": kill_and_resume, "distributed": distributed}[sys.argv[1]](Path(sys.argv[2]))
