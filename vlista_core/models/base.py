"""What the unfolded networks share: the Estimator face, the training loss, configuration as JSON, positive parameters."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Literal, Self, cast

import torch
from torch import Tensor, nn

from vlista_core.dictionaries import DTYPES, LEARNED_MAPS, Json, LearnedMap
from vlista_core.estimate import Estimate, Estimator, Measurement
from vlista_core.linops import LinearMap
from vlista_core.problems import Batch
from vlista_core.prox import squared_modulus

Loss = Literal["mse", "relative", "log"]
Argument = Json | Tensor | torch.dtype | LearnedMap


class UnfoldedModel(nn.Module, Estimator):
    """A network of a few ISTA-like layers: `forward` is the plain core, `estimate` checks its inputs and calls it."""

    loss: Loss = "mse"
    """"mse" is the paper's objective, the mean of |ŝ - s|². For recovery to many dB, "relative" is the mean of ‖ŝ - s‖/‖s‖,
    which weighs failures and successes about alike, and "log" the mean of ln(‖ŝ - s‖²/‖s‖²), which gives up on failures."""
    early_weight: float = 0.0
    """Weight of each layer's loss relative to the next one's; 0 trains on the last layer alone."""

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

    def training_loss(self, batch: Batch, *, generator: torch.Generator) -> Tensor:
        """Mean loss of the samples of a batch. The generator is for models that sample while they train."""
        out: Estimate = self(batch.y, batch.phi, batch.noise_var)
        layers = out.trajectory or (out.signal,)
        total = sample_loss(layers[-1], batch.signal, self.loss)
        weight = 1.0
        for signal in reversed(layers[:-1]) if self.early_weight > 0 else ():
            weight *= self.early_weight
            total = total + weight * sample_loss(signal, batch.signal, self.loss)
        return total.mean()

    def configuration(self) -> dict[str, Json]:
        """The constructor's arguments as JSON: sizes, kinds and scalars; the values of tensors are in the state."""
        return dict(self._arguments)

    @classmethod
    def from_configuration(cls, configuration: dict[str, Json]) -> Self:
        """The model that `configuration` describes, before its state is loaded."""
        build: Callable[..., Self] = cls
        return build(**{name: decode(value) for name, value in configuration.items()})

    def remember(self, **arguments: Argument) -> None:
        """Note the constructor's arguments, so that `configuration` can give them back. Call it once, in `__init__`."""
        self._arguments = {name: encode(value) for name, value in arguments.items()}

    def hold(self, name: str, value: Tensor | None) -> None:
        """Register a fixed tensor, row by row in memory as a file gives it back: products then agree to the last bit."""
        self.register_buffer(name, None if value is None else value.contiguous())

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The dtype of the signals that the model takes."""

    def _check_fit(self, measured: Measurement) -> None:
        if measured.y.dtype != self.dtype:
            raise ValueError(f"y must have the model's dtype {self.dtype}, got {measured.y.dtype}")


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


def encode(value: Argument) -> Json:
    """An argument as JSON: tensors by shape and dtype, learned dictionaries by class and configuration."""
    if isinstance(value, Tensor):
        return {"tensor": [int(size) for size in value.shape], "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, LearnedMap):
        return {"map": type(value).__name__, "configuration": value.configuration()}
    return value


def decode(value: Json) -> Argument:
    """The argument that `encode` wrote: tensors as zeros, to be filled from the state."""
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return torch.zeros(cast(list[int], value["tensor"]), dtype=DTYPES[str(value["dtype"])])
    if "map" in value:
        name = str(value["map"])
        if name not in LEARNED_MAPS:
            raise ValueError(f"unknown kind of learned dictionary {name!r}; known are {', '.join(LEARNED_MAPS)}")
        return LEARNED_MAPS[name].from_configuration(cast(dict[str, Json], value["configuration"]))
    return DTYPES[str(value["dtype"])]
