"""What an estimator takes and gives: the contract that solvers, networks and filters share."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from vlista_core.linops import LinearMap, as_map

if TYPE_CHECKING:
    from vlista_core.problems import Batch


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
    log_evidence: Tensor | None = None
    """log p(y) under the model behind the estimate, without its constant: [batch]."""
    freedom: Tensor | None = None
    """How many degrees of freedom that model uses to explain y: [batch]."""
    own_share: Tensor | None = None
    """The weight of the method's own model where another one stands by for what it does not know: [batch], 0 to 1."""


class Estimator(ABC):
    """ŝ from y = Φs + n. The truth is never an argument."""

    forms_product: bool = False
    """Whether the method needs the matrix of Φ (or ΦΨ) by definition, be it of all its instances or of this one."""

    scale_free: bool = False
    """Whether y and the noise in other units give the same in that unit: estimate(cy, Φ, c²σ²) = c·estimate(y, Φ, σ²).

    True of methods whose settings are relative; a prior or a threshold that was learned has units of its own.
    """

    @abstractmethod
    def estimate(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Estimate:
        """y: [batch, m]; phi: LinearMap, [m, n] or [batch, m, n]; noise_var: E|n|² per entry, a number, [] or [batch]."""


def as_estimator(given: object) -> Estimator:
    """Anything with an `estimate` as it is, or a ValueError that says what an estimator is."""
    if callable(getattr(given, "estimate", None)) and not isinstance(given, type):
        return cast(Estimator, given)
    came = f"the class {given.__name__}" if isinstance(given, type) else repr(given)
    raise ValueError(f"estimator must be an object with estimate(y, phi, noise_var), got {came:.60}")


def called(estimator: Estimator) -> str:
    """What messages call an estimator: its name, else that of its class."""
    return str(getattr(estimator, "name", type(estimator).__name__))


def estimated(name: str, estimator: Estimator, measured: "Measurement | Batch") -> Estimate:
    """What an estimator of somebody else's gives, or a ValueError that names it where that is no estimate of this signal.

    Without the check a signal of [batch, 1] would be compared with the truth entry by entry, and nobody would know. A variance
    that is worked out only when it is read stays unread.
    """
    found: object = estimator.estimate(measured.y, measured.phi, measured.noise_var)
    if not isinstance(found, Estimate):
        raise ValueError(
            f"{name}: estimate must return an Estimate, such as Estimate(signal), got {type(found).__name__}"
        )
    wanted, signal = [len(measured.y), measured.phi.shape[1]], found.signal
    if [*signal.shape] != wanted:
        raise ValueError(f"{name}: estimate must return a signal of shape {wanted}, [batch, n], got {[*signal.shape]}")
    variance = vars(found).get("variance")
    if variance is not None and [*variance.shape] != wanted:
        raise ValueError(f"{name}: its variance must have the shape of its signal, {wanted}, got {[*variance.shape]}")
    return found


@dataclass(frozen=True)
class Measurement:
    """Checked inputs of an estimator: y [batch, m], the map Φ and noise_var [batch]."""

    y: Tensor
    phi: LinearMap
    noise_var: Tensor

    @classmethod
    def checked(cls, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> "Measurement":
        """The inputs as a Measurement, or a ValueError that names the argument, what came and what is allowed."""
        _check_filled("y", y)
        if y.ndim != 2 or not (y.is_floating_point() or y.is_complex()):
            raise ValueError(
                f"y must be a floating-point or complex tensor [batch, length], got {y.dtype} of shape {[*y.shape]}"
            )
        _check_finite("y", y)
        if not isinstance(phi, LinearMap):
            _check_filled("phi", phi)
            phi = as_map(phi)
        for tensor in phi.tensors():
            _check_finite("phi", tensor)
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

    def select(self, index: Tensor) -> "Measurement":
        """The chosen samples. index: [k] integer or [batch] bool."""
        return Measurement(self.y[index], self.phi.select(index), self.noise_var[index])


def _check_filled(name: str, value: Tensor) -> None:
    """A tensor that is not empty, or a ValueError."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.numel() == 0:
        raise ValueError(f"{name} must not be empty, got shape {[*value.shape]}")


def _check_finite(name: str, value: Tensor) -> None:
    """ValueError where a NaN or Inf is found. The sum is one plain read; only a suspicious one is looked at closely."""
    if value.is_meta or not (value.is_floating_point() or value.is_complex()):
        return
    total = torch.view_as_real(value.resolve_conj()).sum() if value.is_complex() else value.sum()
    if not bool(torch.isfinite(total)):
        bad = int((~torch.isfinite(value)).sum())
        if bad:
            raise ValueError(f"{name} must be finite, got {bad} NaN or Inf entries of {value.numel()}")


def _checked_noise(noise_var: Tensor | float, y: Tensor) -> Tensor:
    """σ² of every sample: [batch]. A tensor without dimensions is a number: its dtype and device do not matter."""
    batch, real = y.shape[0], y.real.dtype
    if isinstance(noise_var, Tensor) and noise_var.ndim == 0 and not noise_var.is_complex():
        noise_var = noise_var.to(y.device, real).expand(batch)
    if isinstance(noise_var, Tensor):
        if noise_var.shape != (batch,) or noise_var.dtype != real or noise_var.device != y.device:
            raise ValueError(
                f"noise_var must be a number, a tensor [] or a tensor [{batch}] of {real} on {y.device} to match y, got "
                f"{[*noise_var.shape]} of {noise_var.dtype} on {noise_var.device}"
            )
        _check_finite("noise_var", noise_var)
        if not noise_var.is_meta and bool((noise_var < 0).any()):
            raise ValueError(f"noise_var must be non-negative, got a minimum of {float(noise_var.min()):g}")
        return noise_var
    given: object = noise_var
    number = isinstance(given, int | float | np.floating) and not isinstance(given, bool)
    if not (number and 0.0 <= noise_var < float("inf")):
        raise ValueError(
            f"noise_var must be a finite, non-negative number or a tensor [] or [{batch}], got {noise_var!r}"
        )
    return torch.full((batch,), float(noise_var), dtype=real, device=y.device)
