"""How near to the genie can any estimator of the spatial channel model come? The mean of the channel given y, by Metropolis.

python benchmarks/scm_posterior.py [--scenario scm_64x16] [--snr -10] [--channels 48] [--steps 1400] [--estimators NAMES]

The genie knows gains and angles of the clusters; an estimator has y alone. Two chains over gains and angles begin at the true
ones, which are a draw from their posterior, so that no bias must fade; the first third is left out so that the chains
forget each other. With A and B the means of the channel along them, E (h - A)ᴴ(h - B) is the least error that any estimator can
have. Prints NMSE in dB of the genie, of that limit, and of estimators on the same channels.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor

import chanest
from chanest.channels.scm import ScmSource, laplacian_covariance
from chanest.problem import ChannelProblem
from vlista_core.estimate import Measurement
from vlista_core.gaussian import DenseCovariance, condition
from vlista_core.linops import IdentityMap

LEAST = torch.tensor([0.0, -math.pi / 2, -math.pi / 2], dtype=torch.float64)
WIDTH = torch.tensor([1.0, math.pi, math.pi], dtype=torch.float64)
"""Of the gain before normalisation, of the angle at the receiver and of that at the transmitter: uniform."""
LOCAL = torch.tensor([0.5, 0.15, 0.8], dtype=torch.float64)
REDRAWN = torch.tensor(
    [[False, False, False], [False, True, False], [False, False, True], [True, True, True], [True, False, False]]
)
"""What each kind of proposal draws anew for one cluster; the first takes a small step of all three."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scenario", default="scm_64x16", help="shipped, or a path")
    parser.add_argument("--snr", type=float, default=-10.0)
    parser.add_argument("--channels", type=int, default=48)
    parser.add_argument("--steps", type=int, default=1400)
    parser.add_argument("--estimators", default="product-lmmse", help="names with commas between")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    problem = ChannelProblem(chanest.load_scenario(chosen.scenario))
    source, count = problem.source, chosen.channels
    assert isinstance(source, ScmSource)
    batch = problem.sample(count, seed=5, split="validation", snr_db=chosen.snr)
    assert batch.rays is not None
    rx, clusters = source.rx.ports, source.clusters
    h, y = (each.reshape(count, -1, rx).mT for each in (batch.signal, batch.y))
    pairs = (count, clusters, clusters)
    gains = batch.rays.powers.double().reshape(pairs).sum(2)
    generator = torch.Generator().manual_seed(1)
    unit = torch.rand(count, 1, generator=generator, dtype=torch.float64) ** (1 / 3)
    arriving, leaving = (each.double().mean(2).reshape(pairs) for each in (batch.rays.aoa, batch.rays.aod))
    truth = torch.stack([unit * gains / gains.amax(1, keepdim=True), arriving[:, :, 0], leaving[:, 0, :]], 1)
    noise_var = float(batch.noise_var[0])
    _, known = _posterior(source, truth, y, noise_var)
    first, second = _chains(source, truth.repeat(2, 1, 1), y.repeat(2, 1, 1), noise_var, chosen.steps, generator)
    power = h.abs().square().sum()
    print(f"genie {_db((known - h).abs().square().sum() / power):.2f}")
    print(f"limit {_db(((h - first).conj() * (h - second)).real.sum() / power):.2f}")
    for name in chosen.estimators.split(","):
        ours = chanest.get_estimator(name, problem, substitute=False)
        print(f"{name} {ours.nmse_db(batch):.2f}")


def _chains(
    source: ScmSource, state: Tensor, y: Tensor, noise_var: float, steps: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Means of the channel along the first and along the second half of the chains: [batch, N_r, N_t] each."""
    count, rows = len(state), torch.arange(len(state))
    evidence, mean = _posterior(source, state, y, noise_var)
    total, kept = torch.zeros_like(mean), 0
    for step in range(steps):
        cluster = torch.randint(state.shape[2], (count,), generator=generator)
        kind = torch.randint(len(REDRAWN), (count,), generator=generator)
        uniform = torch.rand(count, 4, generator=generator, dtype=torch.float64)
        small = LOCAL * 10 ** (-1.5 * uniform[:, :1]) * torch.randn(count, 3, generator=generator, dtype=torch.float64)
        now = state[rows, :, cluster]
        moved = torch.where(REDRAWN[kind], LEAST + WIDTH * uniform[:, 1:], now + (kind == 0)[:, None] * small)
        inside = ((moved >= LEAST) & (moved <= LEAST + WIDTH)).all(1)
        proposed = state.clone()
        proposed[rows, :, cluster] = torch.where(inside[:, None], moved, now)
        likely, other = _posterior(source, proposed, y, noise_var)
        taken = inside & (likely - evidence > torch.rand(count, generator=generator).log())
        state, mean = (torch.where(taken[:, None, None], *pair) for pair in ((proposed, state), (other, mean)))
        evidence = torch.where(taken, likely, evidence)
        if step >= steps // 3:
            total, kept = total + mean, kept + 1
    first, second = (total / kept).chunk(2)
    return first, second


def _posterior(source: ScmSource, state: Tensor, y: Tensor, noise_var: float) -> tuple[Tensor, Tensor]:
    """log p(y | gains, angles) up to a constant, [batch], and the mean of H, [batch, N_r, N_t]. state: [batch, 3, clusters]."""
    gains = state[:, 0] / state[:, 0].sum(1, keepdim=True)
    rx_spread, tx_spread = source.spreads
    received = laplacian_covariance(source.rx, state[:, 1], gains, rx_spread).to(y.dtype)
    if source.tx.ports == 1:
        measured = Measurement(y[:, :, 0], IdentityMap(source.rx.ports, y.dtype), torch.full((len(y),), noise_var))
        posterior = condition(DenseCovariance(received), measured)
        return posterior.log_evidence, posterior.mean[:, :, None]
    sent = laplacian_covariance(source.tx, state[:, 2], gains, tx_spread).to(y.dtype)
    (left, rx), (right, tx) = torch.linalg.eigh(received), torch.linalg.eigh(sent)
    power = left.clamp_min(0.0)[:, :, None] * right.clamp_min(0.0)[:, None, :]
    turned = rx.mH @ y @ tx.conj()
    evidence = -(turned.abs().square() / (power + noise_var) + (power + noise_var).log()).sum((1, 2))
    return evidence, rx @ (power / (power + noise_var) * turned) @ tx.mT


def _db(ratio: Tensor) -> float:
    return 10 * math.log10(float(ratio))


if __name__ == "__main__":
    main()
