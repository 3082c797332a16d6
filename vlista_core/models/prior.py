"""The conditional prior p(Ψ_t | Ψ_{t-1}), used in training only: an encoder of three convolutions and two mirrored decoders.

Convolutions 3×3 and transposed ones 7×7, all of stride 2, with width, 2·width and 4·width channels. Width 32 has 1,099,522
weights, the paper's 1.10 M, and costs 27 G multiplications per dictionary of 1024²: reduce it where that is too much.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vlista_core.models.augmentation import initialise
from vlista_core.models.distributions import DictionaryDistribution
from vlista_core.models.doubling import Doubling
from vlista_core.models.posterior import from_channels, start_decoder, to_channels

_BLOCK_ENTRIES = 2**22


class Prior(nn.Module):
    """A distribution of the given family over the next dictionary given the last one."""

    def __init__(
        self,
        width: int,
        family: type[DictionaryDistribution],
        generator: torch.Generator,
        *,
        is_complex: bool = False,
        deviation: float = 0.3,
    ) -> None:
        super().__init__()
        self.family = family
        parts = 2 if is_complex else 1
        encoder: list[nn.Module] = []
        for before, after in itertools.pairwise((parts, width, 2 * width, 4 * width)):
            encoder += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
        self.encoder = nn.Sequential(*encoder)
        self.centre_decoder, self.raw_decoder = _decoder(width, parts), _decoder(width, family.RAW_MAPS)
        initialise(self, generator)
        start_decoder(self.centre_decoder, 0.1, [0.0] * parts)
        start_decoder(self.raw_decoder, 0.1, family.raw_start(deviation))

    def forward(self, dictionary: Tensor) -> DictionaryDistribution:
        """dictionary: [batch, n, b] -> a distribution of the same shape."""
        _, n, atoms = dictionary.shape
        features = self.encoder(to_channels(dictionary))
        centre, raw = (decoder(features)[:, :, :n, :atoms] for decoder in (self.centre_decoder, self.raw_decoder))
        return self.family.from_raw(from_channels(centre), raw)

    def divergence(self, posterior: DictionaryDistribution, sample: Tensor, last: Tensor) -> Tensor:
        """KL(q(Ψ_t) ‖ p(Ψ_t | Ψ_{t-1} = last)): [batch].

        A few samples at a time, and computed again on the way back: the network's maps are a hundred times larger than its
        input, so keeping them for a whole batch would cost tens of GB.
        """
        rows = max(1, _BLOCK_ENTRIES // last[0].numel())
        parts: list[Tensor] = []
        for start in range(0, last.shape[0], rows):
            block = slice(start, start + rows)
            arguments = (posterior.select(block), sample[block], last[block])
            parts.append(checkpoint(self._divergence, *arguments, use_reentrant=False, preserve_rng_state=False))
        return torch.cat(parts)

    def _divergence(self, posterior: DictionaryDistribution, sample: Tensor, last: Tensor) -> Tensor:
        return posterior.divergence(self(last), sample)


def _decoder(width: int, channels: int) -> nn.Sequential:
    sizes = (4 * width, 2 * width, width, channels)
    blocks: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        blocks += [Doubling(before, after, 7), nn.ReLU()]
    return nn.Sequential(*blocks[:-1])
