"""What the clusters of wideband channels are made of, and codebooks of it: a delay, a transmit and a receive factor for each.

Given its clusters a channel has the covariance R = Σ_p D_p ⊗ T_p ⊗ S_p, with one part p for each cluster in order of delay.
T_p and S_p are Toeplitz, so that their lags hold them, and D_p is held in delay modes. Which way an end is turned decides its
own factors alone: two codebooks, of what the transmitter and of what the receiver has for all parts, stand for all pairs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from chanest.arrays import Array
from chanest.channels.rays import Rays
from chanest.channels.source import ChannelSource
from chanest.covariances.families import k_means, principal
from chanest.covariances.lag_layout import lag_between, mean_lags

_DIRECTIONS_FROM = 2000
_LEVELS, _FINER = 32767, 16
"""Of the numbers of a codebook between 0 and 1, and steps between two levels. Rounding makes eigenvalues negative: those that
half precision makes are larger than the noise at 20 dB, and levels alone cost 0.2 dB at 30 dB."""


@dataclass(frozen=True)
class Parts:
    """Of samples whose clusters are known."""

    columns: Tensor
    """What a part has in each delay mode, times the root of its power: D_p = d_p d_pᴴ. [batch, parts, D]."""
    tx: Tensor
    """T_p by its lags, one at lag zero: [batch, parts, lags]."""
    rx: Tensor
    """S_p likewise."""
    delays: Tensor
    """Seconds: [batch, parts]."""
    powers: Tensor
    """[batch, parts]."""

    @staticmethod
    def of_rays(source: ChannelSource, rays: Rays, modes: Tensor) -> "Parts":
        """Of samples with known rays; a line of sight is one more part, the last. modes: U, [S, D]."""
        factors, (clusters, per_cluster) = source.factors(rays), rays.aoa.shape[1:]
        diffuse = clusters * per_cluster
        power = factors.gains.abs().square().sum((1, 2)) * source.scale**2
        response = modes.mH.to(torch.complex128) @ source.delay_response(rays)
        powers, sides, delays = [power[:, :diffuse].reshape(len(rays), clusters, -1).sum(2)], [], rays.delays
        if power.shape[1] > diffuse:
            powers.append(power[:, diffuse:])
            delays = torch.cat([delays, delays[:, :1]], 1)
            response = torch.cat([response, response[:, :, :1]], 2)
        for array, steering in ((source.tx, factors.tx), (source.rx, factors.rx)):
            seen = [mean_lags(steering[:, :diffuse].reshape(len(rays), clusters, per_cluster, -1), array)]
            if steering.shape[1] > diffuse:
                seen.append(mean_lags(steering[:, None, diffuse:], array))
            sides.append(torch.cat(seen, 1).to(torch.complex64))
        every = torch.cat(powers, 1).double()
        columns, (tx, rx) = response.mT * every.sqrt()[:, :, None], sides
        return Parts(columns.to(torch.complex64), tx, rx, delays, every)


class SideCodebook(nn.Module):
    """What one end has for all parts: tables of lags, [K, parts, lags], of which the second half is the mirrored first.

    No lag is larger than that at zero, which is one. Files hold whole numbers of 20 bits: `levels`, and `finer` steps between.
    """

    def __init__(self, array: Array, parts: int, size: int) -> None:
        super().__init__()
        self.array = array
        self.lags = int(lag_between(array).max()) + 1
        self.kept = self.lags // 2 + 1
        self.levels: Tensor = nn.Buffer(torch.zeros(size, parts, self.kept, 2, dtype=torch.int16))
        self.finer: Tensor = nn.Buffer(torch.zeros(size, parts, self.kept, dtype=torch.uint8))
        """Steps of the real part, and `_FINER` times those of the imaginary part."""
        self.prior: Tensor = nn.Buffer(torch.full((size,), 1.0 / size))
        self.powers: Tensor = nn.Buffer(torch.ones(parts))
        self.members: Tensor = nn.Buffer(torch.zeros(size, parts, self.kept, 2), persistent=False)
        """The first halves of the tables, as real pairs."""
        self.register_load_state_dict_post_hook(_unpack)  # type: ignore[no-untyped-call]

    def take(self, members: Tensor) -> None:
        """Members from the first halves of tables as real pairs, rounded to what files hold: [K, parts, kept lags, 2]."""
        steps = (_LEVELS * _FINER * members.clamp(-1.0, 1.0).double()).round().long()
        real, imaginary = (steps % _FINER).unbind(-1)
        self.levels = steps.div(_FINER, rounding_mode="floor").to(torch.int16)
        self.finer = (real + _FINER * imaginary).to(torch.uint8)
        _unpack(self)

    def tables(self) -> Tensor:
        """All members: [K, parts, lags]."""
        return self._whole(self.members)

    def mixture(self, weights: Tensor) -> Tensor:
        """Σ_k weight_k T_k of every part: [batch, K] -> [batch, parts, lags]."""
        return self._whole((weights @ self.members.flatten(1)).unflatten(1, self.members.shape[1:]))

    def matrices(self, weights: Tensor) -> Tensor:
        """The same as matrices: [batch, parts, N, N]."""
        return self.mixture(weights)[:, :, lag_between(self.array).to(weights.device)]

    def scores(self, sums: Tensor) -> Tensor:
        """Σ_p tr(T_kp Q_p) of every member for the lag sums of Q_p: [batch, parts, lags] -> [batch, K]."""
        pairs = torch.view_as_real(sums[..., : self.kept].resolve_conj().contiguous())
        mirrored = torch.full((self.kept, 1), 2.0, device=sums.device)
        mirrored[-1] = 1.0
        return (pairs * mirrored).flatten(1) @ self.members.flatten(1).mT

    def closeness(self, tables: Tensor) -> Tensor:
        """-‖T - T_k‖² over all parts, in units of the members' mean distance from their mean: [batch, K]."""
        points, members = self._weighted(tables), self._weighted(self.tables())
        spread = (members - self.prior @ members).square().sum(1).mean().clamp_min(1e-30)
        return -torch.cdist(points, members).square() / spread

    def fit(self, tables: Tensor, powers: Tensor, seed: int) -> None:
        """k-means of training samples, [samples, parts, lags]. powers: of the parts, by which they count, [parts]."""
        self.powers = powers.clone()
        points = self._weighted(tables)
        centred = points - points.mean(0)
        labels, count = k_means(centred @ principal(centred[:_DIRECTIONS_FROM]).mT, len(self.prior), seed)
        halves = torch.view_as_real(tables[..., : self.kept].contiguous())
        total = torch.zeros_like(self.members).index_add_(0, labels, halves)
        total[count == 0] = halves[: len(count)][count == 0]
        self.take(total / count.clamp_min(1)[:, None, None, None])
        self.prior = (count + 0.5) / (count + 0.5).sum()

    def _whole(self, halves: Tensor) -> Tensor:
        first = torch.view_as_complex(halves.contiguous())
        return torch.cat([first, first[..., :-1].flip(-1).conj()], -1)

    def _weighted(self, tables: Tensor) -> Tensor:
        """As real vectors whose distance is that of the matrices, part by part by its power: [any, parts·lags·2]."""
        often = torch.bincount(lag_between(self.array).flatten()).to(tables.device)
        weight = (self.powers[:, None] / self.powers.sum() * often).sqrt()
        return torch.view_as_real(tables * weight).flatten(1)


def _unpack(codebook: SideCodebook, *loaded: object) -> None:
    """`members` from `levels` and `finer`; torch calls it after a file was loaded, too."""
    finer = torch.stack([codebook.finer % _FINER, codebook.finer // _FINER], -1)
    codebook.members = (codebook.levels + finer / _FINER) / _LEVELS
