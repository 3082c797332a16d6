"""What an estimator takes and gives: the contract that solvers, networks and filters share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from vlista_core.linops import LinearMap, as_map


@dataclass(frozen=True)
class Estimate:
    """The result of an estimator; a field is None where the method has no such thing."""

    signal: Tensor
    """ŝ: [batch, n]."""
    code: Tensor | None = None
    """x̂ with ŝ = Ψx̂: [batch, atoms]."""
    variance: Tensor | None = None
    """Variance of each signal entry, E|s - ŝ|² in the complex case: [batch, n], real."""
    trajectory: tuple[Tensor, ...] | None = None
    """The signal after each layer or iteration, each [batch, n]."""
    samples: Tensor | None = None
    """Draws from the posterior: [draws, batch, n]."""
    iterations: Tensor | None = None
    """How many iterations each sample took: [batch], integer."""


class Estimator(ABC):
    """ŝ from y = Φs + n. The truth is never an argument."""

    forms_product: bool = False
    """Whether the method needs the matrix of Φ (or ΦΨ) by definition, be it of all its instances or of this one."""

    @abstractmethod
    def estimate(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Estimate:
        """y: [batch, m]; phi: LinearMap, [m, n] or [batch, m, n]; noise_var: E|n|² per entry, a float or [batch]."""


@dataclass(frozen=True)
class Measurement:
    """Checked inputs of an estimator: y [batch, m], the map Φ and noise_var [batch]."""

    y: Tensor
    phi: LinearMap
    noise_var: Tensor

    @classmethod
    def checked(cls, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Measurement:
        """The inputs as a Measurement, or a ValueError that names the argument, what came and what is allowed."""
        check_vectors("y", y)
        check_matrix_values("phi", phi)
        phi = as_map(phi)
        m = phi.shape[0]
        if y.shape[1] != m:
            raise ValueError(f"y must have shape [batch, {m}] to match phi of shape {phi.shape}, got {[*y.shape]}")
        if phi.batch is not None and phi.batch != y.shape[0]:
            raise ValueError(
                f"phi holds {phi.batch} matrices but y holds {y.shape[0]} samples; give one matrix or one for each"
            )
        if y.dtype != phi.dtype:
            raise ValueError(f"y and phi must have the same dtype, got {y.dtype} and {phi.dtype}")
        if y.device != phi.device:
            raise ValueError(f"y and phi must be on the same device, got {y.device} and {phi.device}")
        return cls(y, phi, _checked_noise(noise_var, y))

    def select(self, index: Tensor) -> Measurement:
        """The chosen samples. index: [k] integer or [batch] bool."""
        return Measurement(self.y[index], self.phi.select(index), self.noise_var[index])


def check_vectors(name: str, value: Tensor) -> None:
    """A non-empty, finite, floating-point or complex tensor [batch, length], or a ValueError."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if not (value.is_floating_point() or value.is_complex()):
        raise ValueError(f"{name} must be a floating-point or complex tensor, got {value.dtype}")
    if value.ndim != 2:
        raise ValueError(f"{name} must have shape [batch, length], got {[*value.shape]}")
    if value.shape[0] == 0 or value.shape[1] == 0:
        raise ValueError(f"{name} must not be empty, got shape {[*value.shape]}")
    check_finite(name, value)


def check_matrix_values(name: str, value: LinearMap | Tensor) -> None:
    """A map, or a finite tensor [m, n] or [batch, m, n] of a floating-point or complex dtype, or a ValueError."""
    if isinstance(value, LinearMap):
        for tensor in value.tensors():
            check_finite(name, tensor)
        return
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a LinearMap or a torch.Tensor, got {type(value).__name__}")
    if value.numel() == 0:
        raise ValueError(f"{name} must not be empty, got shape {[*value.shape]}")
    check_finite(name, value)


def check_finite(name: str, value: Tensor) -> None:
    """ValueError where a NaN or Inf is found. The sum is one plain read; only a suspicious one is looked at closely."""
    if value.is_meta or not (value.is_floating_point() or value.is_complex()):
        return
    total = torch.view_as_real(value).sum() if value.is_complex() else value.sum()
    if not bool(torch.isfinite(total)):
        bad = int((~torch.isfinite(value)).sum())
        if bad:
            raise ValueError(f"{name} must be finite, got {bad} NaN or Inf entries of {value.numel()}")


def _checked_noise(noise_var: Tensor | float, y: Tensor) -> Tensor:
    real = y.real.dtype
    if isinstance(noise_var, Tensor):
        if noise_var.shape != (y.shape[0],):
            raise ValueError(f"noise_var must be a float or have shape [{y.shape[0]}], got shape {[*noise_var.shape]}")
        if noise_var.dtype != real:
            raise ValueError(f"noise_var must have dtype {real} to match y, got {noise_var.dtype}")
        if noise_var.device != y.device:
            raise ValueError(f"noise_var must be on y's device {y.device}, got {noise_var.device}")
        check_finite("noise_var", noise_var)
        if not noise_var.is_meta and bool((noise_var < 0).any()):
            raise ValueError(f"noise_var must be non-negative, got a minimum of {float(noise_var.min()):g}")
        return noise_var
    if isinstance(noise_var, bool) or not isinstance(noise_var, (int, float)):
        raise ValueError(f"noise_var must be a float or a tensor [batch], got {type(noise_var).__name__}")
    if not 0.0 <= noise_var < float("inf"):
        raise ValueError(f"noise_var must be finite and non-negative, got {noise_var:g}")
    return torch.full((y.shape[0],), float(noise_var), dtype=real, device=y.device)
