"""The spatial channel model has the genie LMMSE of the learned-estimator papers.

Known figures, NMSE in dB of y = h + n with the true covariance, from an independent generator (a grid over sin θ in place of
our series) on fresh channels: 64×16 and 64×1 with three clusters, 128×1 with one. Our figures are the error expected given the
covariance, tr(R - R(R + σ²I)⁻¹R), averaged over 2,000 draws of it: -3.50 / -8.98 / -16.42 / -24.86, -8.51 / -16.12 / -24.66 and
-11.68 / -19.72 / -28.38, with standard errors of 0.02 and, for one cluster, 0.04. A grid on 400 other draws of one cluster has
-11.79 ± 0.08, so that the known figure for it carries an error of its own.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch

from chanest.bounds import get_bound
from chanest.channels.scm import ScmSource
from chanest.problem import ChannelProblem
from chanest.scenario import Scenario, load_scenario

KNOWN = {
    (64, 16, 3): {-10.0: -3.5, 0.0: -9.0, 10.0: -16.4, 20.0: -24.9},
    (64, 1, 3): {0.0: -8.49, 10.0: -16.10, 20.0: -24.62},
    (128, 1, 1): {0.0: -11.90, 10.0: -19.93, 20.0: -28.62},
}
CELLS = [(*setup, snr_db) for setup, figures in KNOWN.items() for snr_db in figures]
ALLOWED = {3: 0.2, 1: 0.3}
"""In dB, by the number of clusters."""


@cache
def _problem(base: int, user: int, clusters: int) -> ChannelProblem:
    content = load_scenario("scm_64x16").model_dump()
    content["bs"]["columns"], content["ue"]["columns"], content["channel"]["clusters"] = base, user, clusters
    return ChannelProblem(Scenario.model_validate({**content, "frontend": {"pilots": user, "beams": "identity"}}))


@cache
def _spectra(base: int, user: int, clusters: int) -> torch.Tensor:
    """Eigenvalues of R of 1,000 samples: [samples, n]."""
    problem = _problem(base, user, clusters)
    assert isinstance(problem.source, ScmSource)
    covariances = problem.source.covariances(problem.rays(range(1000), seed=2, split="test"))
    rx, tx = (torch.linalg.eigvalsh(covariance).clamp_min(0.0) for covariance in covariances)
    spectra: torch.Tensor = (rx[:, :, None] * tx[:, None, :]).flatten(1)
    return spectra


@pytest.mark.parametrize(("base", "user", "clusters", "snr_db"), CELLS)
def test_the_expected_error_of_the_genie_is_the_known_one(base: int, user: int, clusters: int, snr_db: float) -> None:
    power, noise = _spectra(base, user, clusters), 10 ** (-snr_db / 10)
    error = float(10 * (power * noise / (power + noise)).mean().log10())
    assert error == pytest.approx(KNOWN[base, user, clusters][snr_db], abs=ALLOWED[clusters])


@pytest.mark.parametrize("snr_db", [-10.0, 20.0])
def test_the_bound_reaches_the_expected_error(snr_db: float) -> None:
    """On 128 channels of 1,024 entries, for which eigen-decompositions of the factors are taken."""
    problem = _problem(64, 16, 3)
    found = get_bound("genie-covariance", problem).nmse_db(problem.sample(128, seed=1, snr_db=snr_db))
    assert found == pytest.approx(KNOWN[64, 16, 3][snr_db], abs=0.3)
