"""The noise variance where nobody knows it: maximum likelihood under a Gaussian model of the channels."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vlista_core.estimate import Measurement
from vlista_core.linops import LinearMap

_NOISE_DB = tuple(-45.0 + step for step in range(71))
_GAIN_DB = (-9.0, -6.0, -3.0, 0.0, 3.0, 6.0)
_WEAKEST, _STRONGEST = 0.1, 1e3
"""Of channel and noise together, as E|h|² would show it: the grids are for what lies between."""
_CHUNK = 32
_REACH_DB, _STEP_DB = 20.0, 0.25
"""How far from what the power of y says a gain is looked for, and how finely."""


class NoiseModel(nn.Module):
    """The σ² of a grid that makes y most likely if h ~ CN(0, g·UUᴴ) with some gain g.

    U: [n, r] are the directions in which the channels of a scenario lie; without them every direction counts alike, E|h|² = 1,
    which tells noise from channel only by its power. The file of an estimator does not hold U: `get_estimator` says how to
    get that of the scenario's `lmmse`, and it is got when a noise is first unknown. Over many subcarriers U is that of each;
    there `modes` says which delay modes carry all power, [S, D], and what y has beside them is noise.
    """

    def __init__(
        self, directions: Callable[[], Tensor] | None = None, modes: Callable[[], Tensor] | None = None
    ) -> None:
        super().__init__()
        self.find, self.find_modes = directions, modes
        self.directions: Tensor | None
        self.register_buffer("directions", None, persistent=False)

    @torch.no_grad()
    def estimate(self, y: Tensor, phi: LinearMap) -> Tensor:
        """y: [batch, m] -> σ²: [batch]. A y that is too weak or too strong for the grid is looked at in a unit of its own."""
        if self.find_modes is not None and phi.blocks()[1] > 1:
            return _beside(y, self.find_modes().to(y.device, y.dtype))
        seen = phi.squared_frobenius_norm().clamp_min(torch.finfo(y.real.dtype).tiny)
        total = y.abs().square().sum(1) / seen
        unusual = (total > 0) & ((total < _WEAKEST) | (total > _STRONGEST))
        unit = torch.where(unusual, total, 1.0)
        powers, rotated = self._eigen(y / unit.sqrt()[:, None], phi)
        noise = torch.tensor([10 ** (level / 10) for level in _NOISE_DB], dtype=powers.dtype, device=powers.device)
        gain = torch.tensor([10 ** (level / 10) for level in _GAIN_DB], dtype=powers.dtype, device=powers.device)
        chosen = []
        chunk = max(1, _CHUNK // phi.blocks()[1])
        for first in range(0, len(y), chunk):
            some = slice(first, first + chunk)
            variance = gain[:, None, None] * powers[some, None, None, :] + noise[:, None]
            cost = (variance.log() + rotated[some, None, None, :] / variance).sum(-1)
            chosen.append(noise[cost.amin(1).argmin(1)])
        return unit * torch.cat(chosen)

    @torch.no_grad()
    def gain(self, measured: Measurement) -> Tensor:
        """The g that makes y most likely for h ~ CN(0, g·UUᴴ) and the σ² that is known: [batch]."""
        powers, rotated = self._eigen(measured.y, measured.phi)
        noise = measured.noise_var[:, None]
        signal = (rotated.sum(1, keepdim=True) - rotated.shape[1] * noise).maximum(rotated.shape[1] ** 0.5 * noise)
        gains = signal / powers.sum(1, keepdim=True).clamp_min(torch.finfo(powers.dtype).tiny)
        gains = gains * 10 ** (torch.arange(-_REACH_DB, _REACH_DB, _STEP_DB, device=gains.device) / 10)
        variance = gains[:, :, None] * powers[:, None, :] + noise[:, None, :]
        variance = variance.clamp_min(torch.finfo(variance.dtype).tiny)
        cost = (variance.log() + rotated[:, None, :] / variance).sum(-1)
        return gains.gather(1, cost.argmin(1, keepdim=True))[:, 0]

    def _eigen(self, y: Tensor, phi: LinearMap) -> tuple[Tensor, Tensor]:
        """Eigenvalues of ΦUUᴴΦᴴ and the power of y along its eigenvectors, both [batch, m]."""
        if self.directions is None and self.find is not None:
            self.directions = self.find().to(y.device)
        block, count = phi.blocks()
        if self.directions is None or len(self.directions) != block.shape[1]:
            covariance = block.gram()
        else:
            seen = block.apply_block(self.directions.to(y.dtype)[None])
            covariance = seen @ seen.mH
        values, vectors = torch.linalg.eigh(covariance)
        rotated = (y.unflatten(1, (count, -1)) @ vectors.conj()).abs().square().flatten(1)
        return values.repeat(1, count).expand_as(rotated).clamp_min(0.0), rotated


def _beside(y: Tensor, modes: Tensor) -> Tensor:
    """Mean power of what y has outside of the modes U, [S, D]: [batch]."""
    grid: Tensor = y.unflatten(1, (len(modes), -1))
    left = grid - modes @ (modes.mH @ grid)
    power: Tensor = left.abs().square().sum((1, 2))
    return power / ((len(modes) - modes.shape[1]) * grid.shape[2])
