"""The networks of VLISTA: q(Ψ_t | x_{t-1}, y, Φ) and the prior p(Ψ_t | Ψ_{t-1}), which is used in training only.

Posterior: x and y pass a convolution of width 3 each, Φ one over its rows; the three are rectified, so that their sizes are
linear in what follows, joined, mapped to a coarse image of the dictionary and grown by five transposed convolutions to [n, b].
At n = b = 1024, m = 500: 2,076,851 weights, the paper's 2.08 M. Prior: an encoder of three convolutions 3×3 and decoders of
three transposed ones 7×7, all of stride 2, with width, 2·width and 4·width channels. Width 32 has 1,099,522 weights, as
printed (1.10 M), and costs 27 G multiplications per dictionary of 1024²: reduce it where that is too much.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vlista_core.linops import LinearMap
from vlista_core.models.augmentation import initialise
from vlista_core.models.distributions import DictionaryDistribution

_DOUBLINGS = 5
_BLOCK_ENTRIES = 2**22
_CODE_SHARE, _LEAST_SIZE = 0.3, 1e-12
"""What the size of a code takes from the features at the start, and the least one that is divided by."""
_SMOOTHING = 0.25
"""Weight with which a doubling of kernel 4 takes the mean of the four inputs that it sees."""
_BOTTLENECK, _SIZE_SHARE, _RAW_SPREAD = 0.1, 3.0, 0.32
"""Where `Posterior.start_from` starts: the factor of the bottleneck's weights, what the size of y adds to its biases, and the
spread of the raw map of deviations."""


class Doubling(nn.ConvTranspose2d):
    """A transposed convolution of stride 2 whose output has exactly twice the height and width of its input.

    Entry 2j + a of the output sees the inputs j + d through the taps k = a + p - 2d, p the padding: the even and the odd
    entries are two ordinary convolutions. So it is computed as one to four times the channels and a shuffle of pixels, which on
    a CPU and with few channels is several times faster than torch's own; from one channel to one, by `SingleDoubling`.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        """kernel: 4, or any odd size."""
        padding, output_padding = (kernel // 2, 1) if kernel % 2 else (kernel // 2 - 1, 0)
        super().__init__(inputs, outputs, kernel, stride=2, padding=padding, output_padding=output_padding)
        first, last = -((kernel - 1 - padding) // 2), (1 + padding) // 2
        taps = [[a + padding - 2 * d for d in range(first, last + 1)] for a in (0, 1)]
        self.taps: Tensor
        inside = torch.tensor([[k if 0 <= k < kernel else kernel for k in row] for row in taps])
        self.register_buffer("taps", inside, persistent=False)
        self._edges = (-first, last, -first, last)
        self.single = (inputs, outputs, kernel) == (1, 1, 4)

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """[batch, inputs, h, w] -> [batch, outputs, 2h, 2w]."""
        if self.single:
            doubled: Tensor = SingleDoubling.apply(input[:, 0], self.weight[0, 0], self.bias)  # type: ignore[no-untyped-call]
            return doubled[:, None]
        padded = nn.functional.pad(self.weight, (0, 1, 0, 1))
        phases = padded[:, :, self.taps][..., self.taps]  # [inputs, outputs, a, d, a', d']
        kernel = phases.permute(1, 2, 4, 0, 3, 5).flatten(0, 2)
        bias = None if self.bias is None else self.bias.repeat_interleave(4)
        moved = nn.functional.conv2d(nn.functional.pad(input, self._edges), kernel, bias)
        size, _, height, width = moved.shape
        phased = moved.view(size, -1, 2, 2, height, width)
        # The plain permutation takes a third of the time of torch's pixel_shuffle, and gives the same.
        return phased.permute(0, 1, 4, 2, 5, 3).reshape(size, -1, 2 * height, 2 * width)


class SingleDoubling(torch.autograd.Function):
    """`Doubling` of one channel with a kernel of 4×4, as shifted multiply-adds both ways: bound by memory alone.

    With its backward pass it takes a fifth of the time of a convolution of so few channels.
    """

    TAPS = (((1, 0), (3, -1)), ((2, 0), (0, 1)))
    """For even and odd entries of the output: (tap, shift of the input) pairs."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """image: [batch, h, w], weight: [4, 4], bias: [1] -> [batch, 2h, 2w]."""
        batch, height, width = image.shape
        padded = nn.functional.pad(image, (1, 1, 1, 1))
        ctx.save_for_backward(padded, weight)
        out = image.new_empty(batch, height, 2, width, 2)
        for row, column in itertools.product((0, 1), (0, 1)):
            total = bias.expand(batch, height, width).clone()
            for tap, window in SingleDoubling.windows(row, column, height, width):
                total.addcmul_(padded[window], weight[tap])
            out[:, :, row, :, column] = total
        return out.view(batch, 2 * height, 2 * width)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of image, weight and bias from that of the output, [batch, 2h, 2w]."""
        padded, weight = ctx.saved_tensors
        batch, height, width = padded.shape[0], padded.shape[1] - 2, padded.shape[2] - 2
        phases = gradients[0].reshape(batch, height, 2, width, 2)
        to_padded, to_weight = torch.zeros_like(padded), torch.zeros_like(weight)
        for row, column in itertools.product((0, 1), (0, 1)):
            phase = phases[:, :, row, :, column].contiguous()
            for tap, window in SingleDoubling.windows(row, column, height, width):
                to_padded[window].addcmul_(phase, weight[tap])
                to_weight[tap] = (padded[window] * phase).sum()
        return to_padded[:, 1:-1, 1:-1], to_weight, phases.sum().view(1)

    @staticmethod
    def windows(row: int, column: int, height: int, width: int) -> Iterator[tuple[tuple[int, int], tuple[slice, ...]]]:
        """(tap of the kernel, window of the padded input that it multiplies) of the entries of one parity."""
        taps = SingleDoubling.TAPS
        for (i, down), (j, right) in itertools.product(taps[row], taps[column]):
            yield (i, j), (slice(None), slice(1 + down, 1 + down + height), slice(1 + right, 1 + right + width))


class DictionaryDecoders(nn.Module):
    """Two decoders of features, for the centre and for the raw maps of a distribution of dictionaries [n, b]."""

    raw_decoder: nn.Module
    """From features to the raw maps."""

    def __init__(self, family: type[DictionaryDistribution], *, is_complex: bool) -> None:
        super().__init__()
        self.family, self.is_complex, self.parts = family, is_complex, 2 if is_complex else 1

    def add_decoders(self, sizes: Sequence[int], kernel: int, *, constant: bool = False) -> None:
        """sizes: channels before each transposed convolution; constant: see `Posterior`."""

        def decoder(last: int) -> nn.Sequential:
            *layers, _ = _stack([Doubling(*pair, kernel) for pair in itertools.pairwise((*sizes, last))])
            return nn.Sequential(*layers)

        self.centre_decoder = decoder(self.parts)
        self.raw_decoder = Constant(self.family.RAW_MAPS) if constant else decoder(self.family.RAW_MAPS)

    def start(self, generator: torch.Generator, *, spread: float, deviation: float) -> None:
        """Draw all weights; the centre starts `spread` times as large, the standard deviations at `deviation`."""
        initialise(self, generator)
        starts = (spread, [0.0] * self.parts), (0.1, self.family.raw_start(deviation))
        with torch.no_grad():
            for decoder, (scale, start) in zip((self.centre_decoder, self.raw_decoder), starts, strict=True):
                *_, bias = decoder.parameters()
                bias.copy_(torch.tensor(start))
                if isinstance(decoder, nn.Sequential):
                    cast(Doubling, decoder[-1]).weight.mul_(scale)

    def decode(self, features: Tensor, n: int, atoms: int) -> DictionaryDistribution:
        """The distribution of dictionaries [n, atoms]. features: [batch, channels, height, width]."""
        centre, raw = (decoder(features)[:, :, :n, :atoms] for decoder in (self.centre_decoder, self.raw_decoder))
        pairs = centre.movedim(1, -1).contiguous() if self.is_complex else centre
        return self.family.from_raw(torch.view_as_complex(pairs) if self.is_complex else centre[:, 0], raw)


class Constant(nn.Module):
    """Raw maps that are the same for every sample, layer and entry."""

    def __init__(self, maps: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(maps))

    def forward(self, features: Tensor) -> Tensor:
        """[batch, ...] -> [batch, maps, 1, 1]."""
        return self.bias[:, None, None].expand(len(features), -1, -1, -1)


class Posterior(DictionaryDecoders):
    """A distribution of the given family over the dictionary of each sample.

    With `constant` deviations its width is one learned number (for each raw map of the family) in place of a map for each
    sample: the control that shows what the map is worth.
    """

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
        constant: bool = False,
    ) -> None:
        """deviation: where the standard deviations start; spread: what the last layer of the mean's decoder starts with;
        `start_from` finds better starts for both."""
        super().__init__(family, is_complex=is_complex)
        self.length, self.atoms = length, atoms
        self.code_layer = nn.Conv1d(self.parts, 1, 3, padding=1)
        self.measurement_layer = nn.Conv1d(self.parts, 1, 3, padding=1)
        self.row_weight = nn.Parameter(torch.zeros((length, 3, 2) if is_complex else (length, 3)))
        self.row_bias = nn.Parameter(torch.zeros(1))
        self.coarse = math.ceil(length / 2**_DOUBLINGS), math.ceil(atoms / 2**_DOUBLINGS)
        self.bottleneck = nn.Linear(atoms + measurements * (1 + self.parts), self.coarse[0] * self.coarse[1])
        self.add_decoders([1] * _DOUBLINGS, 4, constant=constant)
        self.start(generator, spread=spread, deviation=deviation)
        with torch.no_grad():
            self.row_weight.normal_(std=length**-0.5, generator=generator)

    def forward(self, code: Tensor, y: Tensor, phi: LinearMap) -> DictionaryDistribution:
        """code: [batch, b], y: [batch, m] -> a distribution of [batch, n, b]. Φ is only applied, to three vectors."""
        return self.decode(self._features(code, y, phi), self.length, self.atoms)

    def _features(self, code: Tensor, y: Tensor, phi: LinearMap) -> Tensor:
        """What the decoders see: [batch, 1, height, width]."""
        size = y.shape[0]
        inputs = [
            self.code_layer(to_channels(code)).flatten(1),
            self.measurement_layer(to_channels(y)).flatten(1),
            self._rows(phi).expand(size, -1),
        ]
        return torch.relu(self.bottleneck(torch.relu(torch.cat(inputs, dim=1)))).view(size, 1, *self.coarse)

    @torch.no_grad()
    def start_from(self, y: Tensor, phi: LinearMap, deviation: float, generator: torch.Generator) -> None:
        """Start where training can begin, as the paper does not say where: from y [batch, m] and Φ of some training samples.

        The bottleneck starts with positive biases, to which it adds the size of y, for all features alike, and a little of
        everything else. The decoder of the mean starts blind to what its features have in common, so that samples share a
        dictionary at first; its last layer is scaled so that the atoms have unit norms on average. The decoder of the
        deviations starts as means over neighbours with a negative last layer: it sees what features have in common, and the
        error that a deviation makes grows with y, so that deviations start to fall with it; their raw map spreads by a third.
        `follow` adds the size of codes.
        """
        code = y.new_zeros(len(y), self.atoms)
        self.bottleneck.weight.mul_(_BOTTLENECK)
        self.bottleneck.bias.normal_(generator=generator).abs_()
        sizes = torch.relu(self.measurement_layer(to_channels(y))).mean()
        self.bottleneck.weight[:, self.atoms : self.atoms + y.shape[1]] = _SIZE_SHARE / (y.shape[1] * float(sizes))
        features = self._features(code, y, phi)
        first = cast(Doubling, self.centre_decoder[0]).weight[0, 0]
        for row, column in itertools.product(SingleDoubling.TAPS, SingleDoubling.TAPS):
            taps = tuple(zip(*itertools.product([tap for tap, _ in row], [tap for tap, _ in column]), strict=True))
            first[taps] -= first[taps].mean()
        for part in self.raw_decoder.modules():
            if isinstance(part, Doubling):
                part.weight.fill_(_SMOOTHING)
                assert part.bias is not None
                part.bias.zero_()
        raw = self.family.raw_start(deviation)
        for decoder, spread, middle in (
            (self.centre_decoder, self.length**-0.5, [0.0] * self.parts),
            (self.raw_decoder, -_RAW_SPREAD, raw),
        ):
            if isinstance(decoder, nn.Sequential):
                cast(Doubling, decoder[-1]).weight.mul_(spread / float(decoder(features).std()))
            *_, bias = decoder.parameters()
            bias.add_(bias.new_tensor(middle) - decoder(features).mean((0, 2, 3)))

    @torch.no_grad()
    def move_deviation(self, old: float, new: float) -> None:
        """Turn a posterior whose deviations are about `old` into one where they are about `new`."""
        *_, bias = self.raw_decoder.parameters()
        bias.add_(bias.new_tensor(self.family.raw_start(new)) - bias.new_tensor(self.family.raw_start(old)))

    @torch.no_grad()
    def follow(self, code: Tensor) -> None:
        """Let all features fall with the size of codes such as these, [batch, b]: late layers leave less to lose."""
        size = float(torch.relu(self.code_layer(to_channels(code))).mean())
        self.bottleneck.weight[:, : self.atoms] = -_CODE_SHARE / (self.atoms * max(size, _LEAST_SIZE))

    def _rows(self, phi: LinearMap) -> Tensor:
        """A convolution of width 3 along the rows of Φ, n channels to one: Φ applied to three vectors, shifted and added."""
        weight = torch.view_as_complex(self.row_weight) if self.is_complex else self.row_weight
        before, here, after = phi.apply_block(weight[None]).unbind(2)
        zero = here[:, :1] * 0
        rows = here + torch.cat([zero, before[:, :-1]], dim=1) + torch.cat([after[:, 1:], zero], dim=1)
        flat = torch.view_as_real(rows).flatten(1) if self.is_complex else rows
        return flat + self.row_bias


class Prior(DictionaryDecoders):
    """A distribution of the given family over the next dictionary given the last one."""

    def __init__(
        self, width: int, family: type[DictionaryDistribution], generator: torch.Generator, *, is_complex: bool = False
    ) -> None:
        super().__init__(family, is_complex=is_complex)
        sizes = itertools.pairwise((self.parts, width, 2 * width, 4 * width))
        self.encoder = _stack([nn.Conv2d(*pair, 3, stride=2, padding=1) for pair in sizes])
        self.add_decoders((4 * width, 2 * width, width), 7)
        self.start(generator, spread=0.1, deviation=0.3)

    def forward(self, dictionary: Tensor) -> DictionaryDistribution:
        """dictionary: [batch, n, b] -> a distribution of the same shape."""
        return self.decode(self.encoder(to_channels(dictionary)), *dictionary.shape[1:])

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


def _stack(layers: Sequence[nn.Module]) -> nn.Sequential:
    """The layers, each followed by a ReLU."""
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))


def to_channels(values: Tensor) -> Tensor:
    """[batch, ...] -> [batch, 1, ...], or real and imaginary parts [batch, 2, ...] for complex values."""
    return torch.view_as_real(values).movedim(-1, 1) if values.is_complex() else values[:, None]
