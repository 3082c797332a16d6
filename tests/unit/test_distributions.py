"""The Gaussian over dictionaries against torch.distributions and Monte Carlo; another family through the same door."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import pytest
import torch
from torch import Tensor

from vlista_core.dictionaries import LearnedDictionary
from vlista_core.models import VLISTA
from vlista_core.models.distributions import FAMILIES, DictionaryDistribution, Gaussian, standard_gaussian
from vlista_core.testing import sparse_batch


def _pair(dtype: torch.dtype) -> tuple[Gaussian, Gaussian]:
    generator = torch.Generator().manual_seed(0)
    make = [torch.randn(3, 4, 5, dtype=dtype, generator=generator) for _ in range(2)]
    widths = [torch.rand(3, 4, 5, dtype=torch.float64, generator=generator) + 0.3 for _ in range(2)]
    return Gaussian(make[0], widths[0]), Gaussian(make[1], widths[1])


def test_divergence_equals_torch_distributions() -> None:
    q, p = _pair(torch.float64)
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(q.centre, q.deviation), torch.distributions.Normal(p.centre, p.deviation)
    )
    assert torch.allclose(q.divergence(p, q.centre), expected.sum((1, 2)))
    assert torch.allclose(q.divergence(q, q.centre), torch.zeros(3, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=["real", "complex"])
def test_divergence_equals_monte_carlo(dtype: torch.dtype) -> None:
    q, p = _pair(dtype)
    generator = torch.Generator().manual_seed(1)
    draws = torch.stack(
        [
            DictionaryDistribution.divergence(q, p, q.sample(torch.randn(3, 4, 5, dtype=dtype, generator=generator)))
            for _ in range(20_000)
        ]
    )
    error = draws.std(0) / math.sqrt(len(draws))
    assert ((draws.mean(0) - q.divergence(p, q.centre)).abs() < 4 * error).all()


def test_samples_have_the_stated_moments() -> None:
    q, _ = _pair(torch.complex128)
    generator = torch.Generator().manual_seed(2)
    draws = torch.stack(
        [q.sample(torch.randn(3, 4, 5, dtype=torch.complex128, generator=generator)) for _ in range(8000)]
    )
    assert ((draws.mean(0) - q.mean).abs() < 5 * q.deviation / math.sqrt(8000)).all()
    assert torch.allclose((draws - q.mean).abs().square().mean(0), q.deviation**2, rtol=0.1)


def test_standard_gaussian_is_the_prior_of_the_first_dictionary() -> None:
    prior = standard_gaussian(torch.zeros(7, 2, 3))
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(torch.tensor(0.7)) * 6
    assert torch.allclose(prior.log_density(torch.full((1, 2, 3), 0.7)), expected)


@dataclass(frozen=True)
class TwoWidths(DictionaryDistribution):
    """Heavier tails: an equal mixture of two normal distributions about one centre."""

    RAW_MAPS: ClassVar[int] = 2

    centre: Tensor
    narrow: Tensor
    wide: Tensor

    @classmethod
    def from_raw(cls, centre: Tensor, raw: Tensor) -> Self:
        narrow = torch.nn.functional.softplus(raw[:, 0]) + 1e-6
        return cls(centre, narrow, narrow + torch.nn.functional.softplus(raw[:, 1]))

    @classmethod
    def raw_start(cls, deviation: float) -> list[float]:
        return [math.log(math.expm1(deviation / 2)), math.log(math.expm1(deviation))]

    @property
    def mean(self) -> Tensor:
        return self.centre

    def sample(self, noise: Tensor) -> Tensor:
        return self.centre + torch.where(noise.abs() < 0.67449, self.narrow, self.wide) * noise

    def log_density(self, dictionary: Tensor) -> Tensor:
        parts = [
            torch.distributions.Normal(self.centre, width).log_prob(dictionary) for width in (self.narrow, self.wide)
        ]
        return (torch.logaddexp(*parts) - math.log(2)).sum((1, 2))

    def select(self, index: slice) -> Self:
        return replace(self, centre=self.centre[index], narrow=self.narrow[index], wide=self.wide[index])

    def shifted(self, offset: Tensor) -> Self:
        return replace(self, centre=self.centre + offset)


def test_another_family_enters_by_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "two widths", TwoWidths)
    batch = sparse_batch(torch.float64)
    dictionary = LearnedDictionary.random(40, 48, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    model = VLISTA(dictionary, 24, prior_width=2, family="two widths")
    torch.autograd.backward(model.training_loss(batch, generator=torch.Generator().manual_seed(0)))
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters())
    again = VLISTA.from_configuration(model.configuration())
    assert again.posterior.family is TwoWidths
