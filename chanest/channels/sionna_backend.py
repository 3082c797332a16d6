"""Sionna's own arrays and coefficient generator, for the same rays: what the factored form is tested by."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.channels.coefficients import SPEED_OF_LIGHT
from chanest.channels.rays import Rays

if TYPE_CHECKING:
    from sionna.phy.channel.tr38901 import AntennaArray

    from chanest.channels.source import ChannelSource


@contextmanager
def global_state_kept() -> Iterator[None]:
    """Run a block that may touch global generators or the default dtype (as importing sionna.phy does); undo it."""
    torch_state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    dtype = torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)
        if cuda_states:
            torch.cuda.set_rng_state_all(cuda_states)
        torch.set_default_dtype(dtype)


def sionna_array(array: Array, carrier: float, *, precision: str = "double") -> AntennaArray:
    """The array as Sionna's AntennaArray at `carrier` Hz: same elements, same order."""
    with global_state_kept():
        from sionna.phy.channel.tr38901 import AntennaArray

        return AntennaArray(
            num_rows=array.rows,
            num_cols=array.columns,
            polarization="dual" if len(array.slants) == 2 else "single",
            polarization_type=array.polarization,
            antenna_pattern=array.pattern,
            carrier_frequency=carrier,
            vertical_spacing=array.vertical_spacing,
            horizontal_spacing=array.horizontal_spacing,
            precision=precision,
            device="cpu",
        )


def sionna_taps(source: ChannelSource, rays: Rays) -> Tensor:
    """The matrix of every cluster from Sionna's ChannelCoefficientsGenerator, in double precision, not normalised.

    -> [batch, clusters, N_r, N_t], complex64. Sionna takes one time grid for a whole batch, so samples go one by one
    where their moments differ.
    """
    with global_state_kept():
        from sionna.phy.channel.tr38901 import ChannelCoefficientsGenerator

        generator = ChannelCoefficientsGenerator(
            carrier_frequency=source.carrier,
            tx_array=sionna_array(source.tx, source.carrier),
            rx_array=sionna_array(source.rx, source.carrier),
            subclustering=False,
            precision="double",
            device="cpu",
        )
        moments = rays.time.double()
        groups = torch.unique(moments)
        result = torch.empty(len(rays), rays.delays.shape[1], source.rx.ports, source.tx.ports, dtype=torch.complex64)
        for moment in groups:
            chosen = moments == moment
            result[chosen] = _taps_at(generator, source, rays.select(chosen), float(moment)).to(torch.complex64)
        return result


def _taps_at(generator: object, source: ChannelSource, rays: Rays, moment: float) -> Tensor:
    from sionna.phy.channel.tr38901 import ChannelCoefficientsGenerator
    from sionna.phy.channel.tr38901 import Rays as SionnaRays

    if not isinstance(generator, ChannelCoefficientsGenerator):
        raise TypeError(f"generator must be a ChannelCoefficientsGenerator, got {type(generator).__name__}")

    def link(tensor: Tensor) -> Tensor:
        return tensor.double()[:, None, None]

    per_ray = rays.xpr[:, None, None].expand_as(rays.aoa)
    paths = SionnaRays(
        delays=link(rays.delays), powers=link(rays.powers), aoa=link(rays.aoa), aod=link(rays.aod),
        zoa=link(rays.zoa), zod=link(rays.zod), xpr=link(per_ray), phases=link(rays.phases),
    )  # fmt: skip
    samples, rate = (1, 1.0) if moment == 0.0 else (2, 1.0 / moment)
    h, _ = generator(samples, rate, link(rays.k_factor), paths, _topology(source, rays))
    taps: Tensor = h[:, 0, 0, ..., -1]
    return taps


def _topology(source: ChannelSource, rays: Rays) -> object:
    from sionna.phy.channel.tr38901 import Topology

    def link(tensor: Tensor) -> Tensor:
        return tensor.double()[:, None, None]

    aoa, aod, zoa, zod = rays.los_angles.T
    return Topology(
        velocities=rays.velocity.double()[:, None],
        moving_end=source.moving,
        los_aoa=link(aoa), los_aod=link(aod), los_zoa=link(zoa), los_zod=link(zod),
        los=(rays.k_factor > 0)[:, None, None],
        distance_3d=-link(rays.los_phase) / (2 * torch.pi) * SPEED_OF_LIGHT / source.carrier,
        tx_orientations=rays.tx_orientation.double()[:, None],
        rx_orientations=rays.rx_orientation.double()[:, None],
    )  # fmt: skip
