"""The variational posterior q(Ψ_t | x_{t-1}, y, Φ): three input layers, a bottleneck, two decoders for mean and deviation.

x and y pass a convolution of width 3 each, Φ one over its rows; the three are joined, mapped to a coarse image of the
dictionary and grown by five transposed convolutions to [n, b]. At n = b = 1024, m = 500: 2,076,851 weights, the paper's 2.08 M.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vlista_core.linops import LinearMap
from vlista_core.models.augmentation import initialise
from vlista_core.models.distributions import DictionaryDistribution
from vlista_core.models.doubling import Doubling

_DOUBLINGS = 5


class Posterior(nn.Module):
    """A distribution of the given family over the dictionary of each sample."""

    def __init__(
        self,
        measurements: int,
        length: int,
        atoms: int,
        family: type[DictionaryDistribution],
        generator: torch.Generator,
        *,
        is_complex: bool = False,
        deviation: float = 0.01,
        spread: float = 1.0,
    ) -> None:
        """deviation: where the standard deviations start; spread: root mean square of the entries of the mean at the start."""
        super().__init__()
        self.length, self.atoms, self.is_complex, self.family = length, atoms, is_complex, family
        parts = 2 if is_complex else 1
        self.code_layer = nn.Conv1d(parts, 1, 3, padding=1)
        self.measurement_layer = nn.Conv1d(parts, 1, 3, padding=1)
        self.row_weight = nn.Parameter(torch.zeros((length, 3, 2) if is_complex else (length, 3)))
        self.row_bias = nn.Parameter(torch.zeros(1))
        self.coarse = math.ceil(length / 2**_DOUBLINGS), math.ceil(atoms / 2**_DOUBLINGS)
        self.bottleneck = nn.Linear(atoms + measurements * (1 + parts), self.coarse[0] * self.coarse[1])
        self.centre_decoder, self.raw_decoder = _decoder(parts), _decoder(family.RAW_MAPS)
        initialise(self, generator)
        with torch.no_grad():
            self.row_weight.normal_(std=length**-0.5, generator=generator)
            start_decoder(self.centre_decoder, spread, [0.0] * parts)
            start_decoder(self.raw_decoder, 0.1, family.raw_start(deviation))

    def forward(self, code: Tensor, y: Tensor, phi: LinearMap) -> DictionaryDistribution:
        """code: [batch, b], y: [batch, m] -> a distribution of [batch, n, b]. Φ is only applied, to three vectors."""
        size = y.shape[0]
        features = [
            self.code_layer(to_channels(code)).flatten(1),
            self.measurement_layer(to_channels(y)).flatten(1),
            self._rows(phi).expand(size, -1),
        ]
        coarse = torch.relu(self.bottleneck(torch.cat(features, dim=1))).view(size, 1, *self.coarse)
        centre, raw = (
            decoder(coarse)[:, :, : self.length, : self.atoms] for decoder in (self.centre_decoder, self.raw_decoder)
        )
        return self.family.from_raw(from_channels(centre), raw)

    def _rows(self, phi: LinearMap) -> Tensor:
        """A convolution of width 3 along the rows of Φ, n channels to one: Φ applied to three vectors, shifted and added."""
        weight = torch.view_as_complex(self.row_weight) if self.is_complex else self.row_weight
        before, here, after = phi.apply_block(weight[None]).unbind(2)
        zero = here[:, :1] * 0
        rows = here + torch.cat([zero, before[:, :-1]], dim=1) + torch.cat([after[:, 1:], zero], dim=1)
        flat = torch.view_as_real(rows).flatten(1) if self.is_complex else rows
        return flat + self.row_bias


def _decoder(channels: int) -> nn.Sequential:
    """Five transposed convolutions, 4×4, stride 2, of one channel; the last has `channels`."""
    blocks: list[nn.Module] = []
    for _ in range(_DOUBLINGS - 1):
        blocks += [Doubling(1, 1, 4), nn.ReLU()]
    return nn.Sequential(*blocks, Doubling(1, channels, 4))


def start_decoder(decoder: nn.Sequential, scale: float, start: list[float]) -> None:
    """Scale the weights of the last layer and let each of its channels start at a value."""
    last = decoder[-1]
    if not isinstance(last, nn.ConvTranspose2d) or last.bias is None:
        raise TypeError("a decoder must end in a transposed convolution with a bias")
    with torch.no_grad():
        last.weight.mul_(scale)
        last.bias.copy_(torch.tensor(start))


def to_channels(values: Tensor) -> Tensor:
    """[batch, ...] -> [batch, 1, ...], or real and imaginary parts [batch, 2, ...] for complex values."""
    return torch.view_as_real(values).movedim(-1, 1) if values.is_complex() else values[:, None]


def from_channels(values: Tensor) -> Tensor:
    """The inverse of `to_channels`."""
    return torch.view_as_complex(values.movedim(1, -1).contiguous()) if values.shape[1] == 2 else values[:, 0]
