"""Pilots on some subcarriers as the flat front end on these alone, for methods that go by equal beams on every subcarrier."""

import torch

from chanest.frontend.flat import BeamformingMap
from chanest.frontend.grid import GridMap
from vlista_core.estimate import Measurement

_SAME = 1e-5
"""How much moduli of pilots may differ, relatively: what single precision makes of equal ones."""


def on_pilot_subcarriers(measured: Measurement) -> tuple[Measurement, tuple[int, ...]] | None:
    """The same measurement through a BeamformingMap of h on the subcarriers with pilots, and which these are.

    That is possible for one stream of pilots of equal strength, on the same subcarriers in every symbol, while the channel
    stays: y is divided by the phases of the pilots, which leaves its noise as it is. None for all else.
    """
    phi = measured.phi
    if isinstance(phi, BeamformingMap):
        return measured, tuple(range(phi.subcarriers))
    if not isinstance(phi, GridMap) or phi.snapshots > 1 or len(phi.parts) > 1:
        return None
    (part,), (tile,) = phi.parts, phi.tiles
    snapshots, subcarriers, symbols, users, streams, _ = part.sizes
    if part.sending is None or users * streams > 1:
        return None
    y, beams = measured.y, part.sending[:, 0, 0, :, 0].mT
    if part.values is not None:
        values = part.values.reshape(len(part.values), snapshots * subcarriers, symbols, 1)
        modulus = values.abs()
        strength = modulus[:, :1, :1]
        if not modulus.is_meta and not bool(((modulus - strength).abs() <= _SAME * strength).all()):
            return None
        y = (y.reshape(len(y), -1, symbols, part.chains) * torch.sgn(values).conj()).flatten(1)
        beams = beams * strength[:, 0]
    weights, factor = (None if each is None else each[:, 0] for each in (part.weights, part.factor))
    flat = BeamformingMap(beams, weights, factor, phi.antennas, phi.whiten, subcarriers)
    return Measurement(y, flat, measured.noise_var), tile.subcarriers
