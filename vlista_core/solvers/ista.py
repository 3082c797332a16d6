"""ISTA (Daubechies et al. 2004; the paper's Eq. 3): x ← η_{γλ}(x + γAᴴ(y - Ax)), A = ΦΨ."""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vlista_core.estimate import Estimate, Measurement
from vlista_core.linops import DenseMap, LinearMap
from vlista_core.prox import soft_threshold
from vlista_core.solvers.base import Solver, State, iterate_to, relative_change, zero_code

_IN_CACHE = 2**21
"""Entries of matrices that are iterated on at a time: from the cache, an iteration takes half the time of one from memory."""


@dataclass(frozen=True, kw_only=True)
class LassoSolver(Solver):
    """A proximal gradient method for ½‖y - Ax‖² + λ‖x‖₁; a subclass says how one iteration moves."""

    penalty: float | None = None
    """λ; None takes the universal threshold of the noise, at least 1 % of ‖Aᴴy‖∞."""
    step: float | None = None
    """γ; None takes 1/‖A‖² of each sample."""
    iterations: int = 500
    tolerance: float = 1e-5
    """A sample stops when its code changes by less, relative to its norm."""

    formed: bool = False
    """Whether ΦΨ of each sample is formed first, which pays where iterations are many and Ψ is dense."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "scale_free", self.penalty is None)
        object.__setattr__(self, "forms_product", self.formed)

    def solve(self, system: Measurement, dictionary: LinearMap) -> Estimate:
        [found] = self._run(system, dictionary, [self.iterations])
        return found

    @torch.no_grad()
    def estimates_after(
        self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float, counts: Sequence[int]
    ) -> Iterator[Estimate]:
        """The estimates of solvers with these rising numbers of iterations, all from one run, which goes as far as asked."""
        yield from self._run(*self.system(y, phi, noise_var), counts)

    def _run(self, system: Measurement, dictionary: LinearMap, counts: Sequence[int]) -> Iterator[Estimate]:
        runs = [self._run_piece(piece, counts) for piece in pieces(system, formed=self.formed)]
        for found in zip(*runs, strict=True):
            code, taken = (torch.cat(parts) for parts in zip(*found, strict=True))
            yield Estimate(dictionary.apply(code), code, iterations=taken)

    def _run_piece(self, system: Measurement, counts: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """The code [batch, b] and the iterations taken [batch] after each count."""
        ones = torch.ones_like(system.noise_var)
        step = (gradient_step_size(system.phi) if self.step is None else self.step) * ones
        penalty = default_penalty(system) if self.penalty is None else self.penalty * ones
        code = zero_code(system)
        start = (code, step[:, None], (step * penalty)[:, None], *self.memory(code))
        for (code, *_), taken in iterate_to(system, start, self.update, counts):
            yield code, taken

    @abstractmethod
    def memory(self, code: Tensor) -> State:
        """What the method remembers between iterations besides the code, at the start."""

    @abstractmethod
    def update(self, system: Measurement, state: State, t: int) -> tuple[State, Tensor]:
        """One iteration on (code [batch, b], step [batch, 1], threshold [batch, 1], *memory)."""


@dataclass(frozen=True, kw_only=True)
class ISTA(LassoSolver):
    """Iterative soft thresholding for ½‖y - Ax‖² + λ‖x‖₁."""

    def memory(self, code: Tensor) -> State:
        return ()

    def update(self, system: Measurement, state: State, t: int) -> tuple[State, Tensor]:
        code, step, threshold = state
        residual = system.y - system.phi.apply(code)
        new = soft_threshold(code + step * system.phi.adjoint(residual), threshold)
        return (new, step, threshold), relative_change(new, code) <= self.tolerance


def pieces(system: Measurement, *, formed: bool) -> Iterator[Measurement]:
    """The samples, a few at a time where each has a stored matrix of its own; ΦΨ as a matrix where `formed` asks for it."""
    size, phi = len(system.y), system.phi
    if phi.batch is not None and system.y.device.type == "cpu" and (formed or isinstance(phi, DenseMap)):
        size = max(1, _IN_CACHE // math.prod(phi.shape))
    for index in torch.split(torch.arange(len(system.y), device=system.y.device), size):
        piece = system.select(index) if len(index) < len(system.y) else system
        if formed:
            matrix = piece.phi.materialize()
            piece = replace(piece, phi=DenseMap(matrix if phi.batch is not None else matrix[0]))
        yield piece


def default_penalty(system: Measurement) -> Tensor:
    """λ of ½‖y - Ax‖² + λ‖x‖₁ for each sample: the universal threshold of the noise, at least 1 % of λ_max. [batch].

    E|a_jᴴz|² = ‖a_j‖²: the mean of ‖a_j‖² over the columns is estimated from four fixed random sign vectors z, so that Aᴴ is
    applied four times and A is never formed.
    """
    a, (m, atoms) = system.phi, system.phi.shape
    signs = torch.randint(0, 2, (4, m), generator=torch.Generator().manual_seed(0), dtype=torch.int64) * 2 - 1
    probes = signs.to(a.dtype).to(a.device)
    power = [a.adjoint(probe.expand(a.batch or 1, m)).abs().square().mean(1) for probe in probes]
    noise_level = torch.sqrt(system.noise_var * torch.stack(power).mean(0) * 2.0 * math.log(max(atoms, 2)))
    return torch.maximum(noise_level, 0.01 * a.adjoint(system.y).abs().amax(1))


def gradient_step_size(a: LinearMap) -> Tensor:
    """1/‖A‖² of each sample: [batch or 1]. The norm comes from below, so it is raised by one per cent."""
    return 1.0 / (1.01 * a.spectral_norm()).square().clamp_min(torch.finfo(a.dtype).tiny)
