"""A channel: angular power spectrum, delay profile, singular values. Matplotlib is imported when it is drawn."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from chanest.arrays import Array
from chanest.channels.coefficients import Directions, rotation
from chanest.channels.rays import Rays
from chanest.problem import ChannelProblem
from vlista_core.plotting import new_figure
from vlista_core.problems import check_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FLOOR_DB = -30.0
_ENSEMBLE = 256


def draw_channel(problem: ChannelProblem, path: Path, *, seed: int, index: int = 0) -> None:
    """Angular power spectrum at the base station, delay profile and singular values of sample `index`, into `path`."""
    check_count("index", index, least=0)
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise ValueError(f"{path}: the name must end in .png, .pdf or .svg, got {path.suffix!r}")
    with new_figure(path, (13.5, 4.4)) as figure:
        angular, delay, singular = figure.subplots(1, 3, width_ratios=(1.25, 1, 1))
        h, rays = problem.source.sample(1, seed=seed, start=index)
        whole = h[0].reshape(-1, *h.shape[-2:])
        taps = problem.source.taps(rays)[0] if rays is not None and problem.source.from_rays else whole
        _draw_spectrum(figure, angular, problem, taps, rays)
        if rays is not None and problem.source.from_rays:
            _draw_delays(delay, 1e9 * rays.delays[0], taps.abs().square().sum(dim=(1, 2)))
        else:
            _draw_delays(delay, *_delays_of_subcarriers(problem, whole))
        _draw_singular_values(singular, problem, seed, index)
        rx, tx = problem.arrays
        figure.suptitle(f"{problem.scenario.name}   {tx.ports} × {rx.ports} antennas, sample {index}", fontsize=13)


def _draw_spectrum(figure: "Figure", axes: "Axes", problem: ChannelProblem, taps: Tensor, rays: Rays | None) -> None:
    """Power against direction in the frame of the base station's array, in front of it, with the clusters marked.

    taps: of which the power is added up, those of clusters or of subcarriers: [taps, N_r, N_t].
    """
    array = problem.source.bs
    at_transmitter = problem.source.direction == "downlink"
    ports = (taps if at_transmitter else taps.mT).flatten(0, 1)
    none = torch.empty(0)
    clusters = (none, none, none) if rays is None else _cluster_directions(rays, at_transmitter)
    if array.rows == 1 or array.columns == 1:
        _draw_linear_spectrum(axes, array, ports, clusters)
    else:
        _draw_planar_spectrum(figure, axes, array, ports, clusters)
    axes.set_xlim(-90, 90)
    axes.set_xticks(range(-90, 91, 30))


def _draw_linear_spectrum(axes: "Axes", array: Array, ports: Tensor, clusters: tuple[Tensor, Tensor, Tensor]) -> None:
    """A line over the one angle that a linear array can tell apart."""
    upright = array.columns == 1 and array.rows > 1
    azimuth, elevation, power = clusters
    angle = torch.deg2rad(torch.linspace(-90, 90, 361, dtype=torch.float64))
    level = torch.full_like(angle, math.pi / 2)
    zenith, across = (level - angle, torch.zeros_like(angle)) if upright else (level, angle)
    spectrum = _decibels(_spectrum(array, ports, zenith, across))
    axes.plot(torch.rad2deg(angle).numpy(), spectrum.numpy(), lw=1.8, color="tab:blue")
    for place, share in zip(elevation if upright else azimuth, power, strict=True):
        axes.axvline(float(place), ymax=0.06, color="tab:red", alpha=0.3 + 0.7 * float(share), lw=1.5)
    axes.set_ylim(_FLOOR_DB, 1)
    title = "angular power at the base station (ticks: clusters)"
    axes.set(xlabel="elevation (°)" if upright else "azimuth (°)", ylabel="power (dB)", title=title)


def _draw_planar_spectrum(
    figure: "Figure", axes: "Axes", array: Array, ports: Tensor, clusters: tuple[Tensor, Tensor, Tensor]
) -> None:
    """A map over azimuth and elevation."""
    azimuth, elevation, power = (tensor.numpy() for tensor in clusters)
    across = torch.linspace(-90, 90, 361, dtype=torch.float64)
    up = torch.linspace(-90, 90, 181, dtype=torch.float64)
    zenith = torch.deg2rad(90 - up)[:, None]
    spectrum = _decibels(_spectrum(array, ports, zenith, torch.deg2rad(across)[None, :])).numpy()
    image = axes.pcolormesh(
        across.numpy(), up.numpy(), spectrum, vmin=_FLOOR_DB, vmax=0.0, cmap="magma", rasterized=True
    )
    axes.scatter(azimuth, elevation, s=15 + 150 * power, facecolors="none", edgecolors="white", linewidths=1.1)
    axes.set_ylim(-90, 90)
    axes.set_yticks(range(-90, 91, 30))
    title = "angular power at the base station (circles: clusters)"
    axes.set(xlabel="azimuth (°)", ylabel="elevation (°)", title=title)
    figure.colorbar(image, ax=axes, label="power (dB)", pad=0.02)


def _delays_of_subcarriers(problem: ChannelProblem, h: Tensor) -> tuple[Tensor, Tensor]:
    """Nanoseconds and power of the taps that the subcarriers are the transform of; one tap of a narrowband channel.

    h: [subcarriers, N_r, N_t] -> each [subcarriers].
    """
    first, *others = problem.source.frequencies or (0.0,)
    step = 1e9 / (len(h) * (others[0] - first)) if others else 0.0
    return step * torch.arange(len(h)), torch.fft.ifft(h, dim=0).abs().square().sum(dim=(1, 2))


def _draw_delays(axes: "Axes", nanoseconds: Tensor, power: Tensor) -> None:
    """Power of each cluster or tap of this sample, relative to the sample's total: each [taps]."""
    level = _decibels(power / power.sum(), reference=1.0)
    shown = level > _FLOOR_DB - 10
    delays, levels = nanoseconds[shown].numpy(), level[shown].numpy()
    axes.vlines(delays, _FLOOR_DB - 10, levels, color="tab:blue", lw=1.6)
    axes.plot(delays, levels, "o", ms=5, color="tab:blue")
    axes.set_ylim(_FLOOR_DB - 10, 2)
    axes.set_xlim(left=-0.03 * max(1.0, float(nanoseconds.max())))
    axes.set(xlabel="delay (ns)", ylabel="share of the power (dB)", title="delay profile")
    axes.grid(alpha=0.25)


def _draw_singular_values(axes: "Axes", problem: ChannelProblem, seed: int, index: int) -> None:
    """σ² against its index: this sample, and the spread over an ensemble."""
    from matplotlib.ticker import MaxNLocator

    h, _ = problem.source.sample(_ENSEMBLE, seed=seed)
    mine, _ = problem.source.sample(1, seed=seed, start=index)
    ensemble, sample = (
        torch.linalg.svdvals(matrix.reshape(-1, *matrix.shape[-2:])).square().double() for matrix in (h, mine)
    )
    share = ensemble / ensemble.sum(1, keepdim=True)
    order = torch.arange(1, share.shape[1] + 1).numpy()
    low, middle, high = (_decibels(share.quantile(q, dim=0), reference=1.0).numpy() for q in (0.1, 0.5, 0.9))
    axes.fill_between(order, low, high, color="tab:blue", alpha=0.2, lw=0, label=f"10–90 % of {_ENSEMBLE} channels")
    axes.plot(order, middle, color="tab:blue", lw=1.8, label="median")
    own = sample.mean(0)
    level = _decibels(own / own.sum(), reference=1.0).numpy()
    axes.plot(order, level, "o--", ms=4, lw=1, color="tab:red", label="this sample")
    axes.set(xlabel="index", ylabel="share of the power (dB)", title="singular values squared")
    bottom = max(-60.0, float(low.min()) - 3)
    axes.set_ylim(bottom, -0.4 * bottom)
    axes.set_yticks([tick for tick in axes.get_yticks() if bottom <= tick <= 0])
    axes.set_xlim(0.7, max(4, int((high > bottom).sum())) + 0.3)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, loc="upper right")
    axes.grid(alpha=0.25)


def _spectrum(array: Array, ports: Tensor, zenith: Tensor, azimuth: Tensor) -> Tensor:
    """Σ |a(direction)ᴴ h|² over polarisations and the rows of `ports`: [rows, ports] -> the shape of the angles."""
    steering = array.steering(zenith, azimuth).to(ports.dtype)
    per_element = ports.reshape(-1, array.elements)
    return (steering.conj() @ per_element.mT).abs().square().sum(-1)


def _cluster_directions(rays: Rays, at_transmitter: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Mean direction of each cluster of the first sample in the array's frame: azimuth, elevation (degrees), power."""
    zenith, azimuth, orientation = (
        (rays.zod, rays.aod, rays.tx_orientation) if at_transmitter else (rays.zoa, rays.aoa, rays.rx_orientation)
    )
    k_factor = rays.k_factor[0]
    vectors = Directions.of(zenith[0].mean(1), azimuth[0].mean(1)).vectors()
    power = rays.powers[0] / (k_factor + 1)
    if k_factor > 0:
        angles = rays.los_angles[0]
        los = Directions.of(angles[3 if at_transmitter else 2], angles[1 if at_transmitter else 0]).vectors()
        vectors, power = torch.cat([los[None], vectors]), torch.cat([(k_factor / (k_factor + 1))[None], power])
    local = vectors @ rotation(orientation[0])
    front = (local[:, 0] > 0) & (power > 0)
    local, power = local[front], power[front]
    return (
        torch.rad2deg(torch.atan2(local[:, 1], local[:, 0])),
        90 - torch.rad2deg(torch.acos(local[:, 2].clamp(-1, 1))),
        power / power.max() if len(power) else power,
    )


def _decibels(power: Tensor, *, reference: float | None = None) -> Tensor:
    """10 log10 relative to the reference, or to the largest value."""
    top = float(power.max()) if reference is None else reference
    return 10 * torch.log10((power / top).clamp_min(1e-12))
