"""LISTA (Gregor & LeCun 2010): x_t = η_{θ_t}(V_t x_{t-1} + u), x_0 = 0, with everything learned and nothing tied to Φ.

Where Φ varies, u = W Φᴴy and ŝ = c Wᴴx with W [b, n] shared by the layers and one scalar c: at n = b = 1024 and three layers
these are the 3.15 M parameters that the paper prints. Where Φ is fixed, u = By and ŝ = Dx with B [b, m] and D [n, b] learned.
V_1 multiplies x_0 = 0, so there is none.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vlista_core.estimate import Estimate
from vlista_core.linops import LinearMap
from vlista_core.models.base import Loss, matrix_parameter, matrix_value, store_matrix
from vlista_core.models.layer import Recursion, ScalarNetwork, greedy_layers
from vlista_core.problems import Batch, check_count
from vlista_core.prox import soft_threshold


class LISTA(ScalarNetwork):
    """Free matrices for each layer. `measurements` None is the form for a Φ that varies; an integer m is the classical one.

    It starts as ISTA of step γ for a Gaussian Φ, for which E[ΦᴴΦ] = I, with an orthonormal Ψ: W = γΨᴴ, V_t = I - γΨᴴΨ. Ψ is
    canonical where b = n, and has random orthonormal rows or columns elsewhere.
    """

    search = staticmethod(greedy_layers)

    def __init__(
        self,
        length: int,
        atoms: int,
        *,
        layers: int = 3,
        measurements: int | None = None,
        dtype: torch.dtype = torch.float32,
        step: float = 0.5,
        threshold: float = 0.05,
        noise_aware: bool = False,
        loss: Loss = "mse",
        early_weight: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        """length: n; atoms: b; step, threshold: to start from; noise_aware: let the thresholds, and how much By counts in a
        layer, follow the noise level; the generator draws Ψ and B (None: seed 0)."""
        super().__init__(layers, dtype, measurements=measurements, length=length, loss=loss, early_weight=early_weight)
        check_count("atoms", atoms)
        self.atoms = atoms
        generator = generator or torch.Generator().manual_seed(0)
        psi = _orthonormal(length, atoms, dtype, generator)
        self.add_scalars(None, [threshold] * layers, noise_aware=noise_aware)
        self.mixing = matrix_parameter(_mixing(psi.mH @ psi, step, layers))
        if measurements is None:
            self.encoder = matrix_parameter(step * psi.mH)
            self.scale = nn.Parameter(torch.tensor(1.0 / step))
        else:
            phi = torch.randn(measurements, length, dtype=dtype, generator=generator) / measurements**0.5
            self.encoder = matrix_parameter(step * (phi @ psi).mH)
            self.decoder = matrix_parameter(psi)

    def forward(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> Estimate:
        mixing = matrix_value(self.mixing, self.dtype)
        drive = self._drive(y, phi)
        code, trajectory = torch.zeros_like(drive), []
        for t, (gain, theta) in enumerate(self.scalars(noise_var)):
            kept = code @ mixing[t - 1].mT if t else code
            code = soft_threshold(kept + gain[..., None] * drive, theta[..., None])
            trajectory.append(self._synthesis(code))
        return Estimate(trajectory[-1], code, trajectory=tuple(trajectory))

    @torch.no_grad()
    def start_from(self, batch: Batch) -> None:
        """Start as the ISTA, of one step for all layers and a threshold for each, that fits training data best.

        Where Φ is fixed it is the batch's Φ (that of its first sample) for which B = γ(ΦD)ᴴ and V = I - γ(ΦD)ᴴΦD are set.
        """
        steps: tuple[float, ...]
        if self.measurements is None:
            psi = matrix_value(self.encoder, self.dtype).mH
            psi = psi / torch.linalg.matrix_norm(psi, ord=2)
            gram, analysis, steps = psi.mH @ psi, psi.mH, (0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
        else:
            phi = batch.phi.select(torch.tensor([0], device=batch.y.device)).materialize()[0]
            a = phi @ matrix_value(self.decoder, self.dtype)
            gram, analysis = a.mH @ a, a.mH
            steps = tuple(float(factor / torch.linalg.matrix_norm(a, ord=2) ** 2) for factor in (0.5, 1.0, 1.5, 2.0))
        found = []
        for step in steps:
            self._start(step, gram, analysis)
            found.append((self.choose(batch), step))
        chosen, step = min(found, key=lambda pair: pair[0][-1].error)
        self._start(step, gram, analysis)
        self.start_at(chosen)

    def _start(self, step: float, gram: Tensor, analysis: Tensor) -> None:
        """ISTA of this step. gram: ΨᴴΨ, or AᴴA where Φ is fixed: [b, b]; analysis: Ψᴴ [b, n] or Aᴴ [b, m]."""
        store_matrix(self.encoder, step * analysis)
        store_matrix(self.mixing, _mixing(gram, step, self.layers))
        if self.measurements is None:
            self.scale.fill_(1.0 / step)

    def recursion(self, y: Tensor, phi: LinearMap) -> Recursion:
        drive, mixing = self._drive(y, phi), matrix_value(self.mixing, self.dtype)

        def gradient(t: int, code: Tensor) -> Tensor:
            return drive if t == 0 else code @ mixing[t - 1].mT + drive - code

        zero = torch.zeros_like(drive)
        return Recursion(zero, gradient, lambda t, code, threshold: soft_threshold(code, threshold), self._synthesis)

    def steps_to_try(self, phi: LinearMap) -> Sequence[float]:
        """The step of ISTA is in W and V."""
        return (1.0,)

    def _drive(self, y: Tensor, phi: LinearMap) -> Tensor:
        """W Φᴴy, or By where Φ is fixed: [batch, b]."""
        seen = phi.adjoint(y) if self.measurements is None else y
        return seen @ matrix_value(self.encoder, self.dtype).mT

    def _synthesis(self, code: Tensor) -> Tensor:
        """c Wᴴx, or Dx where Φ is fixed: [batch, n]."""
        if self.measurements is None:
            return self.scale * (code @ matrix_value(self.encoder, self.dtype).conj())
        return code @ matrix_value(self.decoder, self.dtype).mT


def _orthonormal(length: int, atoms: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Ψ: [n, b], the identity where b = n, otherwise with random orthonormal columns (b < n) or rows (b > n)."""
    if length == atoms:
        return torch.eye(length, dtype=dtype)
    tall = torch.randn(max(length, atoms), min(length, atoms), dtype=dtype, generator=generator)
    basis: Tensor = torch.linalg.qr(tall).Q
    return basis if length > atoms else basis.mH


def _mixing(gram: Tensor, step: float, layers: int) -> Tensor:
    """V_t = I - γ gram of the layers from the second on: [layers - 1, b, b]."""
    identity = torch.eye(gram.shape[0], dtype=gram.dtype, device=gram.device)
    return (identity - step * gram).expand(layers - 1, -1, -1).contiguous()
