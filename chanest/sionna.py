"""Our estimators as a block of Sionna 2: `h_hat, err_var = EstimatorBlock(resource_grid, estimator)(y, no)`.

Without a front end the streams of the resource grid are the transmit antennas and send orthogonal pilots. With one,
training symbols go through beams, and the data through the last of them; see `EstimatorBlock`.
"""

import math
from typing import Any

import torch
from torch import Tensor

from chanest.channels.sionna_backend import global_state_kept
from chanest.frontend import BeamformingMap, GridMap
from chanest.pilots import Pilots
from chanest.uncertainty.estimate import ChannelEstimate, independent
from vlista_core.estimate import Estimate, Estimator, Measurement, as_estimator, called, estimated
from vlista_core.linops import LinearMap
from vlista_core.problems import check_count

with global_state_kept():
    from sionna.phy.ofdm import BasePilotChannelEstimator, PilotPattern, ResourceGrid

_SPACING = 120e3
"""Hz between subcarriers; the channel is flat over them, so that nothing depends on it."""


class EstimatorBlock(BasePilotChannelEstimator):  # type: ignore[misc]
    """A channel estimator where Sionna has its LSChannelEstimator: same inputs, same outputs.

    `block(y, no)`: the i-th pilots of all streams of a transmitter are one measurement of H, N_r × streams, whose entries
    no two pilots share: Φ = diag(pilots) ⊗ I. Pilots must be orthogonal, as those of Sionna's "kronecker" pattern. The
    estimates at the pilots are interpolated over the grid as Sionna's own are.

    With an estimator for slots, such as `slot-lmmse`, the same call takes any pattern, 5G NR DMRS with their codes too: all
    pilots of all transmitters are one measurement of the channel of the whole grid, and nothing is interpolated. The
    estimator's h is over (symbol, subcarrier in use, stream, antenna), the streams of one transmitter after the other.

    `block(y, no, beams, combiners)` with `pilots` = T > 0: the first T symbols of a `training_grid` are pilots,
    sent through beams f_t [batch, N_t, T] and received through W_t [batch, T, N_r, N_RF] of orthonormal columns (None: a
    digital receiver); y has N_RF rows. All T pilots tell H; the last S beams and the last combiner carry S data streams,
    and h_hat is Wᴴ Ĥ f of these. The channel must not change over the grid.

    err_var: a number that takes the place of the estimator's own variance; it is needed where it has none.
    scale: what the estimator's own variance is multiplied with.
    """

    def __init__(
        self,
        resource_grid: ResourceGrid,
        estimator: Estimator,
        *,
        pilots: int = 0,
        err_var: float | None = None,
        scale: float = 1.0,
        interpolation_type: str = "nn",
        interpolator: Any = None,
        precision: Any = None,
        device: str | None = None,
    ) -> None:
        super().__init__(resource_grid, interpolation_type, interpolator, precision=precision, device=device)
        check_count("pilots", pilots, least=0)
        self.err_var, self.scale, self.pilots = err_var, scale, pilots
        self._grid = resource_grid
        self._estimator = [
            as_estimator(estimator)
        ]  # in a list, so that it is no submodule whose weights would be the block's
        self._sent: Tensor = (resource_grid.pilot_pattern.pilots.abs() > 0).to(self.device)
        self._whole_grid = bool(getattr(estimator, "slots", False)) and not pilots
        if not self._whole_grid:
            _check_orthogonal(resource_grid)
        if pilots:
            _check_training(resource_grid, pilots)

    def call(
        self, y: Tensor, no: Tensor, beams: Tensor | None = None, combiners: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See Sionna's BaseChannelEstimator: y [batch, rx, rx antennas, symbols, fft] -> h_hat, err_var over the grid."""
        self._check_received(y)
        if not self.pilots:
            if beams is not None:
                raise ValueError("beams are for a block with pilots: give pilots=T to EstimatorBlock")
            h_hat, err_var = self._jointly(y, no) if self._whole_grid else super().call(y, no)
            return h_hat, err_var
        g_hat, variance = self.through_data_beams(y, no, beams, combiners)
        parts = (part.mT[:, None, :, None, :, None] for part in (g_hat, self._told(g_hat, variance)))
        h_hat, err_var = self._interpol(*map(self._at_pilots, parts))
        return h_hat, err_var

    def through_data_beams(
        self, y: Tensor, no: Tensor, beams: Tensor | None, combiners: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Ĝ = WᴴĤF of the data beams and the estimator's variance of its errors: [batch, streams, N_RF] each."""
        if beams is None:
            raise ValueError("this block has pilots: call it with their beams, block(y, no, beams, combiners)")
        phi, probes = self._maps(y, beams, combiners)
        measured = y[:, 0, :, : self.pilots, self._grid.effective_subcarrier_ind[0]].mT.flatten(1)
        noise = self._noise(no, y.shape[:3])[:, 0].to(measured.real.dtype)
        found = self._estimated(measured, phi, noise)
        variance = variance_through(found, probes)
        shape = (len(y), self._grid.num_streams_per_tx, -1)
        g_hat = probes.apply(found.signal).reshape(shape)
        return g_hat, None if variance is None else variance.reshape(shape)

    def _jointly(self, y: Tensor, no: Tensor) -> tuple[Tensor, Tensor]:
        """h_hat and err_var of the whole grid from all pilots at once."""
        grid, (batch, receivers, antennas) = self._grid, y.shape[:3]
        phi = GridMap.of(pilots_of(grid.pilot_pattern), antennas=antennas, snapshots=grid.num_ofdm_symbols).to(y.device)
        arrived = y[..., torch.as_tensor(grid.effective_subcarrier_ind, device=y.device)].flatten(0, 1)
        noise = self._noise(no, y.shape[:3]).flatten().to(y.real.dtype)
        found = self._estimated(phi.collect(arrived.permute(0, 2, 3, 1)), phi, noise)

        def as_sionna(values: Tensor) -> Tensor:
            shape = (batch, receivers, grid.num_ofdm_symbols, phi.subcarriers, grid.num_tx, -1, antennas)
            return values.reshape(shape).permute(0, 1, 6, 4, 5, 2, 3)

        return as_sionna(found.signal), as_sionna(self._told(found.signal, found.variance))

    def estimate_at_pilot_locations(self, y_pilots: Tensor, no: Tensor) -> tuple[Tensor, Tensor]:
        """y_pilots: [batch, rx, rx antennas, tx, streams, pilots] -> estimates and error variances of that shape."""
        batch, receivers, antennas, transmitters, streams, _ = y_pilots.shape
        received = y_pilots[..., self._sent].reshape(batch, receivers, antennas, transmitters, streams, -1)
        groups = received.shape[-1]
        measured = received.permute(0, 1, 3, 5, 4, 2).reshape(-1, streams * antennas)
        pilots = self._grid.pilot_pattern.pilots.to(measured)[self._sent].reshape(transmitters, streams, groups)
        sent = torch.diag_embed(pilots.transpose(1, 2))
        beams = sent.expand(batch, receivers, -1, -1, -1, -1).reshape(-1, streams, streams)
        noise = self._noise(no, y_pilots.shape[:3]).to(measured.real.dtype)
        noise = noise[:, :, None, None].expand(-1, -1, transmitters, groups).flatten()
        found = self._estimated(measured, BeamformingMap.of(beams, antennas=antennas), noise)

        def as_sionna(values: Tensor) -> Tensor:
            shaped = values.reshape(batch, receivers, transmitters, groups, streams, antennas).permute(0, 1, 5, 2, 4, 3)
            return self._at_pilots(shaped)

        return as_sionna(found.signal), as_sionna(self._told(found.signal, found.variance))

    def _estimated(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> Estimate:
        """ĥ and its variance, of the shape they must have."""
        return estimated(called(self._estimator[0]), self._estimator[0], Measurement(y, phi, noise_var))

    def _told(self, estimates: Tensor, variance: Tensor | None) -> Tensor:
        """The error variance that the receiver is told, of the estimates' shape."""
        if self.err_var is not None:
            return torch.full_like(estimates.real, self.err_var)
        if variance is None:
            name = called(self._estimator[0])
            raise ValueError(f"{name} knows no variance of its errors: give EstimatorBlock a number for err_var")
        return self.scale * variance

    def _at_pilots(self, values: Tensor) -> Tensor:
        """Values at the pilots that are sent, zeros at the others: [..., tx, streams, sent] -> [..., tx, streams, pilots]."""
        placed = values.new_zeros(*values.shape[:-3], *self._sent.shape)
        placed[..., self._sent] = values.flatten(-3)
        return placed

    def _maps(self, y: Tensor, beams: Tensor, combiners: Tensor | None) -> tuple[BeamformingMap, BeamformingMap]:
        """Φ of the pilots, and P of the beams and the combiner that carry data."""
        streams, chains = self._grid.num_streams_per_tx, y.shape[2]
        if beams.ndim != 3 or len(beams) != len(y) or beams.shape[2] != self.pilots:
            expected = f"[{len(y)}, N_t, {self.pilots}], one column per pilot"
            raise ValueError(f"beams must have shape {expected}, got {[*beams.shape]}")
        if combiners is not None and combiners.shape[-1] != chains:
            raise ValueError(f"combiners have {combiners.shape[-1]} chains but y has {chains} rows")
        phi = BeamformingMap.of(beams, combiners, antennas=0 if combiners is not None else chains)
        last = None
        if combiners is not None:
            identity = torch.eye(chains, dtype=combiners.dtype, device=combiners.device)
            if not torch.allclose(combiners.mH @ combiners, identity, atol=1e-3):
                raise ValueError("combiners must have orthonormal columns: Sionna's equalisers take white noise only")
            last = combiners[:, -1:].expand(-1, streams, -1, -1)
        return phi, BeamformingMap.of(beams[:, :, -streams:], last, antennas=phi.antennas)

    def _check_received(self, y: Tensor) -> None:
        grid, length = self._grid, getattr(self._estimator[0], "signal_length", None)
        if y.ndim != 5 or tuple(y.shape[-2:]) != (grid.num_ofdm_symbols, grid.fft_size):
            expected = f"[batch, rx, rx antennas, {grid.num_ofdm_symbols}, {grid.fft_size}]"
            raise ValueError(f"y must have shape {expected} to fit the resource grid, got {[*y.shape]}")
        if self.pilots and y.shape[1] != 1:
            raise ValueError(f"with pilots there must be one receiver, got {y.shape[1]}")
        entries, over = grid.num_streams_per_tx * y.shape[2], ""
        if self._whole_grid:
            size = (grid.num_ofdm_symbols, grid.num_effective_subcarriers)
            entries, over = (
                entries * grid.num_tx * math.prod(size),
                f" over {size[0]} symbols and {size[1]} subcarriers",
            )
        if not self.pilots and length not in (None, entries):
            raise ValueError(
                f"the estimator was made for channels of {length} entries, but {grid.num_streams_per_tx} streams to "
                f"{y.shape[2]} antennas{over} have {entries}"
            )

    def _noise(self, no: Tensor, shape: torch.Size) -> Tensor:
        """no of any shape that Sionna allows -> [batch, rx]; all antennas of a receiver must have the same."""
        spread = no.reshape(*no.shape, *(1 for _ in range(3 - no.ndim))).expand(shape)
        if not torch.equal(spread, spread[..., :1].expand(shape)):
            raise ValueError("no must be the same at all antennas of a receiver: whiten y first")
        return spread[..., 0]


def pilots_of(pattern: PilotPattern) -> Pilots:
    """The pilots of a pattern of Sionna's, its transmitters being the users, for `GridMap.of`.

    What any stream reserves is free of all data: that of a stream on another's pilots is no part of the map.
    """
    mask = pattern.mask.bool().cpu().flatten(0, 1)
    sent = pattern.pilots.cpu().flatten(0, 1)
    values = torch.zeros(mask.shape, dtype=sent.dtype).masked_scatter(mask, sent)
    return Pilots(values, mask.any(0), pattern.num_tx)


def training_grid(pilots: int, streams: int, data_symbols: int, subcarriers: int) -> ResourceGrid:
    """A resource grid of `pilots` training symbols, then data: what EstimatorBlock with pilots=T takes.

    A training symbol has one pilot, 1, on the first subcarrier, so that its noise is that of the link; its other
    subcarriers are empty. To Sionna the last `streams` pilots are the orthogonal pilots of the streams.
    """
    symbols = pilots + data_symbols
    mask = torch.zeros(1, streams, symbols, subcarriers, dtype=torch.bool)
    mask[:, :, :pilots] = True
    sent = torch.zeros(1, streams, pilots, subcarriers, dtype=torch.complex64)
    sent[0, :, pilots - streams :, 0] = torch.eye(streams)
    pattern = PilotPattern(mask, sent.flatten(2))
    return ResourceGrid(symbols, subcarriers, _SPACING, num_streams_per_tx=streams, pilot_pattern=pattern)


def variance_through(found: Estimate, probes: BeamformingMap) -> Tensor | None:
    """The variance of P(ĥ - h) as the estimator has it, [batch, p]; None where it has none."""
    if isinstance(found, ChannelEstimate):
        return found.variance_through(probes)
    return None if found.variance is None else independent(found.variance, probes)


def _check_orthogonal(grid: ResourceGrid) -> None:
    """ValueError unless every stream has as many pilots as the others, where no other stream sends anything."""
    pattern = grid.pilot_pattern
    mask, sent = pattern.mask.bool().cpu().flatten(2), pattern.pilots.cpu().abs() > 0
    counts = sent.sum(-1)
    if not bool((counts == counts.max()).all()) or not int(counts.max()):
        raise ValueError(f"every stream must have the same number of pilots, got {counts.flatten().tolist()}")
    pilots = torch.zeros_like(mask).masked_scatter(mask, sent)
    crowd = (pilots | ~mask).sum((0, 1))
    if bool((pilots & (crowd > 1)).any()):
        raise ValueError("pilots must be orthogonal: where a stream sends one, no other stream may send anything")


def _check_training(grid: ResourceGrid, pilots: int) -> None:
    """ValueError unless the grid is one of `training_grid` for so many pilots."""
    pattern, streams = grid.pilot_pattern, grid.num_streams_per_tx
    if grid.num_tx != 1 or not streams <= pilots < grid.num_ofdm_symbols:
        raise ValueError(
            f"the resource grid must have one transmitter and room for {pilots} pilots, at least one a stream, "
            f"before its data, got {grid.num_tx}, {streams} streams and {grid.num_ofdm_symbols} symbols"
        )
    data_symbols, subcarriers = grid.num_ofdm_symbols - pilots, grid.num_effective_subcarriers
    wanted = training_grid(pilots, streams, data_symbols, subcarriers).pilot_pattern
    pairs = ((wanted.mask, pattern.mask), (wanted.pilots, pattern.pilots))
    if not all(torch.equal(ours, theirs.to(ours)) for ours, theirs in pairs):
        raise ValueError(f"the resource grid must be a training_grid of {pilots} pilots and {streams} streams")
