"""Where samples come from: `Problem.sample` gives a Batch, and nothing else does."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from vlista_core.devices import Device
from vlista_core.linops import LinearMap

if TYPE_CHECKING:
    from vlista_core.draws import Split


@dataclass(frozen=True)
class Batch:
    """Samples of y = Φs + n with their truth."""

    signal: Tensor
    """s: [batch, n]."""
    y: Tensor
    """[batch, m]."""
    phi: LinearMap
    """Φ: one for each sample, or shared."""
    noise_var: Tensor
    """E|n|² per entry: [batch]."""
    code: Tensor | None = None
    """x with s = Ψx, where the problem has one: [batch, atoms]."""

    def __len__(self) -> int:
        return self.y.shape[0]

    def select(self, index: Tensor) -> Self:
        """The chosen samples. index: [k] integer or [batch] bool."""
        return self._map(lambda value: value[index] if isinstance(value, Tensor) else value.select(index))

    def to(self, device: Device) -> Self:
        """The same samples on `device`."""
        return self._map(lambda value: value.to(device))

    def _map(self, change: Callable[[Any], Any]) -> Self:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: change(value) for name, value in values.items() if value is not None})


class Problem(ABC):
    """A distribution of (s, Φ, y)."""

    @property
    @abstractmethod
    def signal_length(self) -> int:
        """n."""

    @property
    @abstractmethod
    def measurements(self) -> int:
        """m."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> Device:
        """Where the tensors of a batch are made; no draw depends on it."""
        return "cpu"

    def on(self, device: Device) -> Self:
        """The same problem with its batches made on `device`; itself where it makes them in one place only."""
        return self

    @abstractmethod
    def sample(
        self, count: int, *, seed: int, split: "Split" = "test", start: int = 0, snr_db: float | None = None
    ) -> Batch:
        """Samples start … start + count - 1 of the stream (seed, split); snr_db None takes the problem's own noise.

        Sample i is a function of (seed, split, i) alone. The splits of one seed never share a draw.
        """


def check_count(name: str, value: int, *, least: int = 1) -> None:
    """ValueError unless `value` is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
