"""HyperLISTA (Chen et al. 2021): ALISTA whose every parameter follows from the iterate and three constants.

    x_{k+1} = η_θ^p(x_k + Wᴴ(y - Ax_k) + β(x_k - x_{k-1})),    r_k = A⁺(Ax_k - y),    A = ΦΨ,
    θ = c₁‖r_k‖₁/m,    β = c₂‖x_k‖₀/m,    p = c₃ ln(‖A⁺y‖₁/‖r_k‖₁) clipped to [0, 1], a share of the entries.

The original has the coherence of W in place of 1/m. So normalised, good c₁ (2-5) and c₂ (0.1-1.3) are of order one at any size,
and nothing costs O(b²); c₃ is a share already, and 0.02-0.1 is good, more without noise. The defaults are the cautious end,
where no sample fails; `tune` gains several dB. W is A⁺ᴴ with its columns scaled, so one product gives both Wᴴ(y - Ax) and
A⁺(y - Ax).
"""

from itertools import product

import torch
from torch import Tensor

from vlista_core.estimate import Estimate
from vlista_core.linops import DenseMap, LinearMap
from vlista_core.models.base import Loss, sample_loss
from vlista_core.models.fixed_dictionary import FixedDictionaryNetwork, fixed_product, whitened_columns
from vlista_core.problems import Batch
from vlista_core.prox import soft_threshold_with_selection

_COARSE = ((1.0, 2.0, 4.0, 8.0), (0.0, 0.25, 0.5, 1.0), (0.02, 0.05, 0.1, 0.2))
_REFINEMENTS = (2.0**0.5, 2.0**0.25, 2.0**0.125)

Constants = tuple[float, float, float]


class HyperLISTA(FixedDictionaryNetwork):
    """Three constants in all, found by grid search (`tune`); it has no parameters to descend on.

    `matrix` [m, n] is the Φ that the model is made for; None factorises the Φ of each sample.
    """

    scale_free = True

    constants: Tensor
    whitened: Tensor | None
    gain: Tensor | None

    def __init__(
        self,
        matrix: Tensor | None,
        *,
        c1: float = 2.0,
        c2: float = 1.0,
        c3: float = 0.02,
        layers: int = 16,
        dictionary: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        loss: Loss = "relative",
    ) -> None:
        """c1, c2, c3: threshold, momentum and selection; dictionary: [n, b]; loss: what `tune` makes small."""
        whitened, gain = (None, None) if matrix is None else whitened_columns(fixed_product(matrix, dictionary, dtype))
        super().__init__(layers, dictionary, dtype, made_for=whitened, loss=loss)
        self.forms_product = matrix is None
        for name, value in {"c1": c1, "c2": c2, "c3": c3}.items():
            if not 0.0 <= value < float("inf"):
                raise ValueError(f"{name} must be finite and non-negative, got {value}")
        self.register_buffer("constants", torch.tensor([c1, c2, c3], dtype=torch.float64))
        self.hold("whitened", whitened)
        self.hold("gain", gain)

    def forward(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> Estimate:
        psi, a = self.system(phi)
        codes = self._iterate(y, a, *self._factors(a), self.constants)
        trajectory = tuple(psi.apply(code) for code in codes)
        return Estimate(trajectory[-1], codes[-1], trajectory=trajectory)

    @torch.no_grad()
    def tune(self, batch: Batch) -> float:
        """Set the constants by a grid search on training data, coarse and then finer around the best; returns the loss."""
        psi, a = self.system(batch.phi)
        factors = self._factors(a)

        def loss(constants: Constants) -> float:
            code = self._iterate(batch.y, a, *factors, self.constants.new_tensor(constants))[-1]
            value = float(sample_loss(psi.apply(code), batch.signal, self.loss).mean())
            return value if value == value else float("inf")

        best = min((loss(constants), constants) for constants in product(*_COARSE))
        for factor in _REFINEMENTS:
            _, (c1, c2, c3) = best
            around = product(*((value / factor, value, value * factor) for value in (c1, c2 or 0.1, c3)))
            best = min(best, *((loss(constants), constants) for constants in around))
        self.constants.copy_(self.constants.new_tensor(best[1]))
        return best[0]

    def _iterate(self, y: Tensor, a: LinearMap, pinv: LinearMap, gain: Tensor, constants: Tensor) -> list[Tensor]:
        """The codes after each layer, [batch, b]. pinv: the adjoint of A⁺; gain: a_iᴴ(AAᴴ)⁻¹a_i, [batch or 1, b]."""
        c1, c2, c3 = constants.to(y.real.dtype)
        m, atoms = a.shape
        tiny = torch.finfo(y.real.dtype).tiny
        previous = code = y.new_zeros(y.shape[0], atoms)
        first = pinv.adjoint(y).abs().mean(1, keepdim=True).clamp_min(tiny)
        codes = []
        for _ in range(self.layers):
            correction = pinv.adjoint(y - a.apply(code))
            size = correction.abs().mean(1, keepdim=True).clamp_min(tiny)
            momentum = c2 * (code != 0).sum(1, keepdim=True) / m
            share = (c3 * torch.log(first / size)).clamp(0, 1)
            descent = code + correction / gain + momentum * (code - previous)
            previous, code = code, soft_threshold_with_selection(descent, c1 * size * (atoms / m), share)
            codes.append(code)
        return codes

    def _factors(self, a: LinearMap) -> tuple[LinearMap, Tensor]:
        """A⁺ᴴ as a map and the gains, stored or of every sample; atoms that Φ does not see have an infinite gain."""
        if self.whitened is not None and self.gain is not None:
            whitened, gain = self.whitened, self.gain
        else:
            matrix = a.materialize()
            whitened, gain = whitened_columns(matrix if a.batch is not None else matrix[0])
        gain = torch.where(gain > 0, gain, torch.full_like(gain, float("inf")))
        return DenseMap(whitened), gain[..., 0, :]
