"""What the classical solvers share: the entry point, the loop that drops converged samples, default parameters."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from vlista_core.estimate import Estimate, Estimator, Measurement
from vlista_core.linops import IdentityMap, LinearMap
from vlista_core.problems import check_count

_TIE = 1e-5
"""What `preference` adds, in units of the mean ‖a‖²."""
State = tuple[Tensor, ...]
Step = Callable[[Measurement, State, int], tuple[State, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Solver(Estimator):
    """A sparse solver for y = ΦΨx + n: a small frozen configuration, checked when it is built.

    Fields that are integers must be at least 1, fields that are floats positive and finite; None is allowed where declared.
    """

    scale_free = True

    dictionary: LinearMap | None = None
    """Ψ: [n, atoms], shared by all samples; None is the canonical basis."""

    def __post_init__(self) -> None:
        for field in fields(self):
            name, kind, value = field.name, str(field.type), getattr(self, field.name)
            if value is None and "None" in kind:
                continue
            if "int" in kind:
                check_count(name, value)
            elif "float" in kind and not 0.0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {value}")

    def estimate(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> Estimate:
        with torch.no_grad():
            return self.solve(*self.system(y, phi, noise_var))

    def system(self, y: Tensor, phi: LinearMap | Tensor, noise_var: Tensor | float) -> tuple[Measurement, LinearMap]:
        """The arguments of `solve`, from checked inputs."""
        measured = Measurement.checked(y, phi, noise_var)
        identity = IdentityMap(measured.phi.shape[1], measured.phi.dtype, measured.phi.device)
        dictionary = identity if self.dictionary is None else self.dictionary
        return Measurement(measured.y, measured.phi @ dictionary, measured.noise_var), dictionary

    @abstractmethod
    def solve(self, system: Measurement, dictionary: LinearMap) -> Estimate:
        """The algorithm. `system.phi` is A = ΦΨ, not formed; the signal is dictionary.apply(code)."""


def iterate(system: Measurement, start: State, step: Step, iterations: int) -> tuple[State, Tensor]:
    """Repeat `step` until every sample says it is done, at most `iterations` times: the last of `iterate_to`."""
    [found] = iterate_to(system, start, step, [iterations])
    return found


def iterate_to(system: Measurement, start: State, step: Step, counts: Sequence[int]) -> Iterator[tuple[State, Tensor]]:
    """The state after each of the rising `counts` of steps, of one run; each is what `iterate` would give.

    `start` is a tuple of tensors [batch, ...]; `step(system, state, t)` returns the next state and who is done, [batch]
    bool. A sample keeps the state at which it was done, whatever the others do, and leaves the batch once half have
    finished, so that it costs nothing more. Yields the state and the number of steps each sample took. A step that changes
    its state in place changes what was yielded.
    """
    size = system.y.shape[0]
    device = system.y.device
    done = torch.zeros(size, dtype=torch.bool, device=device)
    taken = torch.zeros(size, dtype=torch.int64, device=device)
    place = torch.arange(size, device=device)
    final, state = (*start, taken), start
    check_every = 8 if device.type == "cuda" else 1
    finished, t = 0, 0
    for count in counts:
        # On the meta device there are no values that could converge: two steps show shapes and devices.
        while t < (min(count, 2) if done.is_meta else count) and finished < done.shape[0]:
            proposed, now_done = step(system, state, t)
            state = proposed if finished == 0 else _keep_where(done, state, proposed)
            taken = taken + (~done).to(taken.dtype)
            done = done | now_done
            t += 1
            if done.is_meta or t % check_every:
                finished = -1
                continue
            finished = int(done.sum())
            if done.shape[0] > finished >= done.shape[0] / 2:
                final = _put(final, place[done], (*state, taken), done)
                rest = ~done
                system, place, taken = system.select(rest), place[rest], taken[rest]
                state = tuple(value[rest] for value in state)
                done, finished = done[rest], 0
        if place.shape[0] == size:
            yield state, taken
        else:
            *state_of_all, taken_by_all = _put(final, place, (*state, taken), torch.ones_like(done))
            yield tuple(state_of_all), taken_by_all


def _keep_where(done: Tensor, old: State, new: State) -> State:
    return tuple(
        after if after is before else torch.where(done.view(-1, *[1] * (after.ndim - 1)), before, after)
        for before, after in zip(old, new, strict=True)
    )


def _put(final: State, place: Tensor, state: State, chosen: Tensor) -> State:
    return tuple(whole.index_copy(0, place, part[chosen]) for whole, part in zip(final, state, strict=True))


def relative_change(new: Tensor, old: Tensor) -> Tensor:
    """‖new - old‖ / ‖new‖ of each sample, 0 where nothing moved. [batch, b] -> [batch]."""
    tiny = torch.finfo(new.real.dtype).tiny
    return _norms(new - old) / _norms(new).clamp_min(tiny)


def _norms(x: Tensor) -> Tensor:
    """Euclidean norms: [batch, b] -> [batch]. torch's own norm of complex numbers is several times slower than of pairs."""
    pairs = torch.view_as_real(x.resolve_conj()).flatten(1) if x.is_complex() else x
    norms: Tensor = torch.linalg.vector_norm(pairs, dim=1)
    return norms


def within_noise(residual: Tensor, noise_var: Tensor) -> Tensor:
    """Whether ‖y - Ax‖² ≤ mσ², the discrepancy principle. residual: [batch, m] -> [batch] bool."""
    return residual.abs().square().sum(1) <= residual.shape[1] * noise_var


def nonzeros(wanted: int | None, system: Measurement) -> int:
    """How many non-zeros to look for; None is what m measurements can usually identify."""
    m, atoms = system.phi.shape
    if wanted is None:
        return min(atoms, max(1, int(m / (2.0 * math.log(atoms / m + math.e)))))
    if wanted > min(m, atoms):
        raise ValueError(
            f"n_nonzero must be at most min(m, atoms) = {min(m, atoms)} for a system {m}x{atoms}, got {wanted}"
        )
    return wanted


def preference(norms: Tensor) -> Tensor:
    """‖a‖²/(‖a‖² + a little), by which a fit counts: [batch, b]. Of atoms that fit alike the one that Φ sees best is taken.

    Repeated rows of Φ make many atoms fit a residual alike; one that Φ hardly sees would need a huge coefficient.
    """
    power = norms.square()
    little = _TIE * power.mean(1, keepdim=True)
    return power / (power + little.clamp_min(torch.finfo(power.dtype).tiny))


def zero_code(system: Measurement) -> Tensor:
    """x = 0: [batch, b]."""
    return system.y.new_zeros(system.y.shape[0], system.phi.shape[1])
