"""NALISTA (Behrens et al. 2021): ALISTA whose step and threshold come per sample and layer from an LSTM.

The cell sees ‖y - Ax‖₁ and ‖Wᴴ(y - Ax)‖₁ as logarithms, because they fall by many dB over the layers, standardised by
constants that are part of the model. The threshold is given in units of the mean |Wᴴ(y - Ax)|, for the same reason.
"""

import torch
from torch import Tensor, nn

from vlista_core.estimate import Estimate
from vlista_core.linops import LinearMap
from vlista_core.models.base import Loss, inverse_softplus
from vlista_core.models.fixed_dictionary import FixedDictionaryNetwork, weight_map
from vlista_core.problems import Batch, check_count


class NALISTA(FixedDictionaryNetwork):
    """ALISTA with (γ, θ) from an LSTM cell shared by the layers; `weights` and `dictionary` as in ALISTA."""

    weights: Tensor | None
    input_mean: Tensor
    input_scale: Tensor

    def __init__(
        self,
        weights: Tensor | None,
        *,
        layers: int = 16,
        hidden: int = 256,
        dictionary: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        selection: bool = True,
        threshold: float = 1.0,
        loss: Loss = "relative",
        early_weight: float = 0.3,
        generator: torch.Generator | None = None,
    ) -> None:
        """weights: [m, b]; dictionary: [n, b]; the generator draws the cell's weights (None: seed 0)."""
        super().__init__(layers, dictionary, dtype, made_for=weights, loss=loss, early_weight=early_weight)
        self.selection = selection
        check_count("hidden", hidden)
        self.hidden, self.forms_product = hidden, weights is None
        self.hold("weights", weights)
        real = dtype.to_real()
        self.register_buffer("input_mean", torch.zeros(2, dtype=real))
        self.register_buffer("input_scale", torch.ones(2, dtype=real))
        with torch.random.fork_rng(devices=[]):
            self.cell = nn.LSTMCell(2, hidden, dtype=real)
            self.mix = nn.Linear(hidden, hidden, dtype=real)
            self.head = nn.Linear(hidden, 2, dtype=real)
        self.start_hidden = nn.Parameter(torch.zeros(hidden, dtype=real))
        self.start_cell = nn.Parameter(torch.zeros(hidden, dtype=real))
        self._initialise(threshold, generator or torch.Generator().manual_seed(0))

    def start_from(self, batch: Batch) -> None:
        """Set the standardisation constants from training data: the spread of the cell's inputs at x = 0, in logarithms."""
        _, a = self.system(batch.phi)
        norms = self._norms(batch.y, weight_map(self.weights, a).adjoint(batch.y))
        self.input_mean.copy_(norms.mean(0))
        self.input_scale.copy_(norms.std(0).clamp_min(0.5))

    def forward(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> Estimate:
        psi, a = self.system(phi)
        weights = weight_map(self.weights, a)
        size = y.shape[0]
        code = y.new_zeros(size, psi.shape[1])
        hidden, cell = self.start_hidden.expand(size, -1), self.start_cell.expand(size, -1)
        trajectory = []
        for t in range(self.layers):
            residual = y - a.apply(code)
            gradient = weights.adjoint(residual)
            inputs = (self._norms(residual, gradient) - self.input_mean) / self.input_scale
            hidden, cell = self.cell(inputs, (hidden, cell))
            heads = nn.functional.softplus(self.head(torch.relu(self.mix(cell))))
            step, threshold = heads[:, :1], heads[:, 1:]
            threshold = threshold * gradient.abs().mean(1, keepdim=True)
            code = self.shrink(t, code + step * gradient, threshold)
            trajectory.append(psi.apply(code))
        return Estimate(trajectory[-1], code, trajectory=tuple(trajectory))

    def _norms(self, residual: Tensor, gradient: Tensor) -> Tensor:
        """ln of the mean |.| of both: [batch, 2]."""
        tiny = torch.finfo(residual.real.dtype).tiny
        return torch.log(torch.stack([value.abs().mean(1) for value in (residual, gradient)], dim=1) + tiny)

    def _initialise(self, threshold: float, generator: torch.Generator) -> None:
        """Uniform weights as usual for LSTMs; heads that start at γ = 1 and the given threshold."""
        bound = self.hidden**-0.5
        with torch.no_grad():
            for parameter in (*self.cell.parameters(), *self.mix.parameters(), *self.head.parameters()):
                parameter.uniform_(-bound, bound, generator=generator)
            self.head.weight.mul_(0.1)
            self.head.bias.copy_(torch.tensor([inverse_softplus(1.0), inverse_softplus(threshold)]))
