"""Sionna's own arrays and coefficient generator, for the same rays: what the factored form is tested by."""

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
    from sionna.phy.channel.tr38901 import AntennaArray, Topology
    from sionna.phy.channel.tr38901 import Rays as SionnaRays

    from chanest.channels.source import ChannelSource


@contextmanager
def global_state_kept() -> Iterator[None]:
    """Run a block that may touch global generators or the default dtype (as importing sionna.phy does); undo it."""
    numpy_state, python_state, dtype = np.random.get_state(), random.getstate(), torch.get_default_dtype()  # noqa: NPY002
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)
        torch.set_default_dtype(dtype)


def sionna_array(array: Array, carrier: float, *, precision: str = "double") -> "AntennaArray":
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


def sionna_taps(source: "ChannelSource", rays: Rays) -> Tensor:
    """The matrix of every cluster from Sionna's ChannelCoefficientsGenerator, in double precision, not normalised.

    -> [batch, clusters, N_r, N_t], complex64. Sionna takes one time grid for a whole batch, so samples are grouped by
    their moments.
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
        result = torch.empty(len(rays), rays.delays.shape[1], source.rx.ports, source.tx.ports, dtype=torch.complex64)
        for moment in rays.time.unique():
            chosen = rays.time == moment
            samples, rate = (1, 1.0) if moment == 0.0 else (2, 1.0 / float(moment))
            h, _ = generator(samples, rate, *_drop(source, rays.select(chosen)))
            result[chosen] = h[:, 0, 0, ..., -1].to(torch.complex64)
        return result


def _drop(source: "ChannelSource", rays: Rays) -> "tuple[Tensor, SionnaRays, Topology]":
    """K-factors, rays and topology as Sionna has them: one transmitter and one receiver per sample."""
    from sionna.phy.channel.tr38901 import Rays as SionnaRays
    from sionna.phy.channel.tr38901 import Topology

    def link(tensor: Tensor) -> Tensor:
        return tensor.double()[:, None, None]

    theta, cross, other, phi = rays.strength.double().unbind(-1)
    if not (bool((theta == 1).all()) and torch.equal(theta, phi) and torch.equal(cross, other)):
        raise ValueError("backend must be factored for rays with a polarisation matrix of their own, got sionna")
    paths = SionnaRays(
        delays=link(rays.delays), powers=link(rays.powers), aoa=link(rays.aoa), aod=link(rays.aod),
        zoa=link(rays.zoa), zod=link(rays.zod), xpr=link(cross.pow(-2).expand_as(rays.aoa)),
        phases=link(rays.phases),
    )  # fmt: skip
    aoa, aod, zoa, zod = (link(angle) for angle in rays.los_angles.T)
    topology = Topology(
        velocities=rays.velocity.double()[:, None], moving_end=source.moving,
        los_aoa=aoa, los_aod=aod, los_zoa=zoa, los_zod=zod, los=(rays.k_factor > 0)[:, None, None],
        distance_3d=-link(rays.los_phase) / (2 * torch.pi) * SPEED_OF_LIGHT / source.carrier,
        tx_orientations=rays.tx_orientation.double()[:, None], rx_orientations=rays.rx_orientation.double()[:, None],
    )  # fmt: skip
    return link(rays.k_factor), paths, topology
