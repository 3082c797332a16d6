"""What the unfolded networks share: the Estimator face, the training loss, positive and complex parameters."""

import math
from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from vlista_core.configured import Configured
from vlista_core.estimate import Estimate, Estimator, Measurement
from vlista_core.linops import LinearMap
from vlista_core.problems import Batch, check_count
from vlista_core.prox import squared_modulus

Loss = Literal["mse", "relative", "log"]


class UnfoldedModel(nn.Module, Estimator, Configured):
    """A network of a few ISTA-like layers: `forward` is the plain core, `estimate` checks its inputs and calls it."""

    start_samples: int = 256
    """Training samples that `start_from` asks for."""

    def __init__(
        self,
        layers: int,
        dtype: torch.dtype,
        *,
        measurements: int | None = None,
        length: int | None = None,
        loss: Loss = "mse",
        early_weight: float = 0.0,
    ) -> None:
        """layers: T; dtype: of the signals; measurements, length: the shape of the Φ that the model is made for, None is any.

        loss: "mse" is the paper's objective, the mean of |ŝ - s|². For recovery to many dB, "relative" is the mean of
        ‖ŝ - s‖/‖s‖, which weighs failures and successes about alike, and "log" the mean of ln(‖ŝ - s‖²/‖s‖²), which gives up
        on failures. early_weight: of each layer's loss relative to the next one's; 0 trains on the last layer alone.
        """
        super().__init__()
        for name, value in {"layers": layers, "measurements": measurements, "length": length}.items():
            if value is not None:
                check_count(name, value)
        self.layers, self.dtype, self.measurements, self.length = layers, dtype, measurements, length
        self.loss, self.early_weight = loss, early_weight

    @abstractmethod
    def forward(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> Estimate:
        """y: [batch, m], phi: the map Φ, noise_var: [batch]. The trajectory holds the signal after each layer."""

    def estimate(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Estimate:
        measured = Measurement.checked(y, phi, noise_var)
        self._check_fit(measured)
        with torch.no_grad():
            return self.infer(measured)

    def infer(self, measured: Measurement) -> Estimate:
        """The estimate of checked inputs: a call of `forward`, with everything a user may want to see."""
        out: Estimate = self(measured.y, measured.phi, measured.noise_var)
        return out

    def start_from(self, batch: Batch) -> None:
        """Start from the best of a grid on training data, so that no layer diverges; a model without one stays as built."""

    def training_loss(self, batch: Batch, *, generator: torch.Generator) -> Tensor:
        """Mean loss of the samples of a batch. The generator is for models that sample while they train."""
        out: Estimate = self(batch.y, batch.phi, batch.noise_var)
        layers = out.trajectory or (out.signal,)
        total, weight = sample_loss(layers[-1], batch.signal, self.loss), 1.0
        for signal in reversed(layers[:-1]) if self.early_weight > 0 else ():
            weight *= self.early_weight
            total = total + weight * sample_loss(signal, batch.signal, self.loss)
        return total.mean()

    def hold(self, name: str, value: Tensor | None) -> None:
        """Register a fixed tensor, row by row in memory as a file gives it back: products then agree to the last bit."""
        self.register_buffer(name, None if value is None else value.contiguous())

    def _check_fit(self, measured: Measurement) -> None:
        if measured.y.dtype != self.dtype:
            raise ValueError(f"y must have the model's dtype {self.dtype}, got {measured.y.dtype}")
        m, n = measured.phi.shape
        if self.measurements not in (None, m):
            raise ValueError(f"phi must have {self.measurements} rows, for which the model was made, got {m}")
        if self.length not in (None, n):
            raise ValueError(f"phi must have {self.length} columns, for which the model was made, got {n}")


def sample_loss(estimate: Tensor, signal: Tensor, kind: Loss) -> Tensor:
    """The loss of each sample. [batch, n] -> [batch]."""
    error = squared_modulus(estimate - signal)
    if kind == "mse":
        return error.mean(1)
    ratio = error.sum(1) / signal.abs().square().sum(1).clamp_min(torch.finfo(error.dtype).tiny) + _RATIO_FLOOR
    return torch.sqrt(ratio) if kind == "relative" else torch.log(ratio)


_RATIO_FLOOR = 1e-9


def inverse_softplus(value: float) -> float:
    """u with softplus(u) = value, for value > 0."""
    if not value > 0:
        raise ValueError(f"value must be positive, got {value}")
    return value + math.log(-math.expm1(-value))


def positive_parameter(values: list[float]) -> nn.Parameter:
    """A parameter whose softplus is `values`: [len(values)]."""
    return nn.Parameter(torch.tensor([inverse_softplus(value) for value in values]))


def matrix_parameter(start: Tensor) -> nn.Parameter:
    """A parameter that starts at `start`; complex matrices are stored as real pairs [..., 2], which every optimiser takes."""
    start = start.detach().clone()
    return nn.Parameter(torch.view_as_real(start).contiguous() if start.is_complex() else start)


def matrix_value(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix that `parameter` stores, for signals of `dtype`."""
    return torch.view_as_complex(parameter) if dtype.is_complex else parameter


def store_matrix(parameter: nn.Parameter, value: Tensor) -> None:
    """Set the parameter to `value`, in place and outside of any gradient."""
    with torch.no_grad():
        parameter.copy_(torch.view_as_real(value) if value.is_complex() else value)
