"""Arrays: element order is Sionna's, steering vectors are plane waves."""

from __future__ import annotations

import math

import pytest
import torch

from chanest.arrays import Array, ula, upa
from chanest.channels.sionna_backend import sionna_array

ARRAYS = [
    ula(8),
    ula(5, spacing=0.7, polarization="H"),
    upa(3, 4),
    upa(2, 3, spacing=0.6, polarization="VH"),
    upa(4, 2, polarization="cross", pattern="38.901"),
    Array(3, 2, vertical_spacing=0.8, horizontal_spacing=0.5),
]


@pytest.mark.parametrize("array", ARRAYS, ids=str)
def test_element_order_is_sionnas(array: Array) -> None:
    carrier = 28e9
    theirs = sionna_array(array, carrier)
    wavelength = 299792458.0 / carrier
    torch.testing.assert_close(array.positions(), theirs.ant_pos.double() / wavelength, atol=1e-6, rtol=0)
    assert theirs.ant_ind_pol1.tolist() == list(range(array.elements))
    if len(array.slants) == 2:
        assert theirs.ant_ind_pol2.tolist() == list(range(array.elements, array.ports))
    assert float(theirs.ant_pol1.slant_angle) == pytest.approx(array.slants[0])


@pytest.mark.parametrize("array", ARRAYS, ids=str)
def test_steering_is_a_plane_wave(array: Array) -> None:
    zenith, azimuth = torch.rand(2, 3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * math.pi
    steering = array.steering(zenith, azimuth)
    assert steering.shape == (3, 7, array.elements)
    toward = torch.stack(
        [torch.sin(zenith) * torch.cos(azimuth), torch.sin(zenith) * torch.sin(azimuth), torch.cos(zenith)], -1
    )
    phase = 2 * math.pi * toward @ array.positions()[: array.elements].T
    torch.testing.assert_close(steering, torch.exp(1j * phase))


def test_converting_an_array_leaves_the_global_generators_alone() -> None:
    before = torch.get_rng_state()
    sionna_array(ula(4), 1e9)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"rows": 0, "columns": 2}, "rows"),
        ({"rows": 2, "columns": 2.0}, "columns"),
        ({"rows": 2, "columns": 2, "vertical_spacing": -0.5}, "vertical_spacing"),
        ({"rows": 2, "columns": 2, "polarization": "X"}, "polarization"),
        ({"rows": 2, "columns": 2, "pattern": "dipole"}, "pattern"),
    ],
)
def test_bad_arrays_are_refused_by_name(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Array(**arguments)  # type: ignore[arg-type]
