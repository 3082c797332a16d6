"""Covariances of slots by powers of delays: R = ⊕_u R_t ⊗ D diag(γ_u) Dᴴ ⊗ R_r, each transmit port u by itself.

The delays of a user are few, and which they are differs from user to user: γ is found in y, by the evidence. All antennas and
pilot symbols have the same delays, so that a slot shows them well even where noise is strong. Time and antennas have the
covariance of the ensemble. With pilots that tell the ports apart C is diagonal in the eigenvectors of the three factors.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from chanest.frontend.ports import PortPilots, pilots_of_ports
from vlista_core.estimate import Measurement
from vlista_core.gaussian import LEAST_SHARE, Covariance, Posterior
from vlista_core.linops import LinearMap
from vlista_core.prox import squared_modulus


@dataclass(frozen=True, eq=False)
class DelayCovariance(Covariance):
    """R = ⊕_u R_t ⊗ D diag(γ_u) Dᴴ ⊗ R_r over snapshots, subcarriers and receive antennas."""

    time: Tensor
    """R_t: [1, L, L]."""
    delays: Tensor
    """D, what each delay is on the subcarriers: [1, S, G]."""
    powers: Tensor
    """γ: [batch or 1, ports, G], real and not negative."""
    space: Tensor
    """R_r: [1, N_r, N_r]."""

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """L, S, ports, N_r."""
        return self.time.shape[1], self.delays.shape[1], self.powers.shape[1], self.space.shape[1]

    @property
    def length(self) -> int:
        snapshots, subcarriers, ports, antennas = self.sizes
        return snapshots * subcarriers * ports * antennas

    def apply(self, x: Tensor) -> Tensor:
        self._check_input("x", x, self.length)
        grid = x.reshape(len(x), *self.sizes)
        along = torch.einsum("sg,blsun->blung", self.delays[0].conj(), grid) * self.powers[:, None, :, None].to(x.dtype)
        across = torch.einsum("lm,bmung,rn->blurg", self.time[0], along, self.space[0])
        return torch.einsum("sg,blurg->blsur", self.delays[0], across).flatten(1)

    def mixture(self, weights: Tensor) -> "DelayCovariance":
        return replace(self, powers=torch.einsum("bk,kug->bug", weights.to(self.powers), self.powers))

    def variances(self) -> Tensor:
        over = torch.einsum("sg,bug->bsu", squared_modulus(self.delays[0]), self.powers)
        time, space = (each[0].diagonal().real for each in (self.time, self.space))
        return torch.einsum("l,bsu,n->blsun", time, over, space).flatten(1)

    def materialize(self) -> Tensor:
        across = (self.delays[:, None] * self.powers[:, :, None].to(self.dtype)) @ self.delays.mH[:, None]
        identity = torch.eye(self.sizes[2], dtype=self.dtype, device=self.device)
        whole = torch.einsum("lm,bust,uv,nr->blsunmtvr", self.time[0], across, identity, self.space[0])
        return whole.reshape(len(across), self.length, self.length)

    def posterior(self, measured: Measurement, probes: LinearMap | None) -> "DelayPosterior | None":
        """Port by port, where pilots tell ports apart."""
        pilots = pilots_of_ports(measured.phi)
        if pilots is None or probes is not None:
            return None
        return DelayPosterior(self, measured, self.powers, probes, pilots)

    def adapted(self, measured: Measurement, steps: int) -> "DelayCovariance | None":
        """The same with γ by `steps` of the fixed point that raises the evidence of y; None where ports share pilots."""
        pilots = pilots_of_ports(measured.phi)
        if pilots is None:
            return None
        found = []
        for port, view in enumerate(views(self, measured, pilots)):
            powers = self.powers[:, port].expand(len(measured.y), -1)
            for _ in range(steps):
                powers = view.better(powers)
            found.append(powers)
        return replace(self, powers=torch.stack(found, 1))


@dataclass(frozen=True, eq=False)
class PortView:
    """What the pilots of a port see, in directions of time and antennas (together i) that are independent of each other.

    There the delays have the covariance λ_i B diag(γ) Bᴴ, and the noise is white.
    """

    y: Tensor
    """[batch, T·N_r, K], K directions of the subcarriers that hold all delays."""
    noise_var: Tensor
    """[batch]."""
    strengths: Tensor
    """λ_i: [T·N_r]."""
    seen: Tensor
    """B: [K, G]."""
    symbols: Tensor
    """A_t, R_t at the pilots in the directions of time: [L, T]."""
    antennas: Tensor
    """Eigenvectors of R_r: [N_r, N_r]."""
    directions: Tensor
    """Of the subcarriers with pilots: [pilots, K]."""
    turns: Tensor
    """Eigenvectors of time: [T, T]."""
    beside: Tensor
    """Energy of y beside the directions: [batch]."""

    def spectrum(self, powers: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Eigenvectors V [batch, K, K] of B diag(γ) Bᴴ, VᴴB, 1/(λ_i λ_k + σ²) and Vᴴy times that, [batch, T·N_r, K] each."""
        values, vectors = torch.linalg.eigh((self.seen * powers[:, None].to(self.seen.dtype)) @ self.seen.mH)
        total = values.clamp_min(0.0)[:, None] * self.strengths[:, None] + self.noise_var[:, None, None]
        return vectors, vectors.mH @ self.seen, 1 / total, (self.y @ vectors.conj()) / total

    def better(self, powers: Tensor) -> Tensor:
        """γ·(Σ_i λ_i |bᴴC_i⁻¹y_i|²) / (Σ_i λ_i bᴴC_i⁻¹b), which is γ where the evidence is greatest: [batch, G]."""
        _, turned, inverse, white = self.spectrum(powers)
        shown = (squared_modulus(white @ turned.conj()) * self.strengths[:, None]).sum(1)
        weights = torch.einsum("i,bik->bk", self.strengths, inverse)
        expected = torch.einsum("bk,bkg->bg", weights, squared_modulus(turned))
        return powers * shown / expected.clamp_min(torch.finfo(expected.dtype).tiny)


def views(prior: DelayCovariance, measured: Measurement, pilots: tuple[PortPilots, ...]) -> Iterator[PortView]:
    """What the pilots of each port see. R is that of the delays of `prior`; its powers do not matter."""
    snapshots, subcarriers, ports, antennas = prior.sizes
    matched = measured.phi.adjoint(measured.y).reshape(-1, snapshots, subcarriers, ports, antennas)
    strengths, eigenvectors = torch.linalg.eigh(prior.space[0])
    for port, mine in enumerate(pilots):
        least = mine.of_grid(matched[:, :, :, port]) / mine.energy
        moments, turns = torch.linalg.eigh(prior.time[0][mine.symbols][:, mine.symbols])
        at_pilots = prior.delays[0][mine.subcarriers]
        directions = _directions(at_pilots)
        y = torch.einsum("btkn,tp,kd,nr->bprd", least, turns.conj(), directions.conj(), eigenvectors.conj())
        yield PortView(
            y.flatten(1, 2),
            measured.noise_var / mine.energy,
            (moments.clamp_min(0.0)[:, None] * strengths.clamp_min(0.0)).flatten(),
            directions.mH @ at_pilots,
            prior.time[0][:, mine.symbols] @ turns,
            eigenvectors,
            directions,
            turns,
            (squared_modulus(least).flatten(1).sum(1) - squared_modulus(y).flatten(1).sum(1)).clamp_min(0.0),
        )


def _directions(columns: Tensor) -> Tensor:
    """Orthonormal columns that span those given, as precision tells them apart: [rows, K]."""
    left, values, _ = torch.linalg.svd(columns, full_matrices=False)
    least = len(columns) * torch.finfo(values.dtype).eps * values[0]
    main: Tensor = left[:, values > least]
    return main


@dataclass(frozen=True, eq=False)
class DelayPosterior(Posterior):
    """The posterior of a slot, port by port. `factor` says nothing: C is diagonal in known directions."""

    prior: DelayCovariance
    pilots: tuple[PortPilots, ...]

    @cached_property
    def _views(self) -> list[PortView]:
        return list(views(self.prior, self.measured, self.pilots))

    @cached_property
    def _ports(self) -> list[tuple[PortView, Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]]:
        """View, powers and spectrum of each port."""
        batch = len(self.measured.y)
        powers = [self.prior.powers[:, port].expand(batch, -1) for port in range(self.prior.sizes[2])]
        return [(view, mine, view.spectrum(mine)) for view, mine in zip(self._views, powers, strict=True)]

    @cached_property
    def mean(self) -> Tensor:
        return torch.stack([self._mean(*port) for port in self._ports], 3).flatten(1)

    def _mean(self, view: PortView, powers: Tensor, spectrum: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        """Of a port: [batch, L, S, N_r]."""
        _, turned, _, white = spectrum
        gains = (white @ turned.conj()) * powers[:, None]
        over = torch.einsum("bpng,sg->bpns", gains.unflatten(1, (view.symbols.shape[1], -1)), self.prior.delays[0])
        space = self.prior.space[0] @ view.antennas
        return torch.einsum("lp,bpns,rn->blsr", view.symbols, over, space)

    @cached_property
    def variance(self) -> Tensor:
        known = torch.stack([self._known(*port) for port in self._ports], 3).flatten(1)
        before = self.prior.variances()
        left = (before - known).clamp_min(0.0)
        return left.maximum(LEAST_SHARE * left.mean(1, keepdim=True))

    def _known(self, view: PortView, powers: Tensor, spectrum: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        """By how much y makes the variance of a port smaller: [batch, L, S, N_r]."""
        _, turned, inverse, _ = spectrum
        across = self.prior.delays[0] @ (powers[:, :, None] * turned.mH)
        over = torch.einsum("bsk,bik->bsi", squared_modulus(across), inverse)
        over = over.unflatten(2, (view.symbols.shape[1], -1))
        space = self.prior.space[0] @ view.antennas
        return torch.einsum("lp,bspn,rn->blsr", squared_modulus(view.symbols), over, squared_modulus(space))

    @cached_property
    def whitened(self) -> Tensor:
        """C⁻¹y = ΦG where G is C⁻¹ of what each port shows by itself, divided by the energies."""
        snapshots, subcarriers, ports, antennas = self.prior.sizes
        matched = self.measured.phi.adjoint(self.measured.y).reshape(-1, snapshots, subcarriers, ports, antennas)
        grid = torch.zeros_like(matched)
        for port, (mine, (view, _, (vectors, _, _, white))) in enumerate(zip(self.pilots, self._ports, strict=True)):
            beside = mine.of_grid(matched[:, :, :, port]) / mine.energy
            inside = white @ vectors.mT - view.y / view.noise_var[:, None, None]
            turned = inside.unflatten(1, (view.symbols.shape[1], -1))
            back = torch.einsum("bpnd,tp,kd,rn->btkr", turned, view.turns, view.directions, view.antennas)
            value = back + beside / view.noise_var[:, None, None, None]
            grid[:, mine.symbols[:, None], mine.subcarriers, port] = value / mine.energy
        return self.measured.phi.apply(grid.flatten(1))

    @cached_property
    def log_evidence(self) -> Tensor:
        total = torch.zeros_like(self.measured.noise_var)
        for mine, (view, _, (_, _, inverse, white)) in zip(self.pilots, self._ports, strict=True):
            count = view.y.shape[1] * (len(mine.subcarriers) - view.y.shape[2])
            fit = (squared_modulus(white) / inverse).flatten(1).sum(1) + view.beside / view.noise_var
            volume = count * view.noise_var.log() - inverse.log().flatten(1).sum(1)
            total = total - fit - volume - view.y.shape[1] * len(mine.subcarriers) * mine.energy.log()
        return total

    @cached_property
    def precision(self) -> Tensor:
        raise ValueError("a posterior of delays does not hold the inverse of C; ask for `whitened` or `mean`")

    def solve(self, right: Tensor) -> Tensor:
        raise ValueError("a posterior of delays solves no systems of the measurements; ask it for `whitened`")

    def whiten(self, block: Tensor) -> Tensor:
        raise ValueError("a posterior of delays whitens no block of the grid; ask it for `variance`")
