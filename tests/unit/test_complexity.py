"""The counts of multiplications are those of the formulas, and parameters those of the paper."""

from __future__ import annotations

import pytest
import torch

from vlista_core.dictionaries import LearnedDictionary
from vlista_core.models import ADLISTA, ALISTA, DLISTA, LISTA, LISTACP, NALISTA, VLISTA, AdaLISTA, UnfoldedModel
from vlista_core.models.complexity import best_ms, complexity, macs, parameters

M, N, B = 48, 96, 128
PRODUCT = M * N + N * B
"""ΦΨx with two factors."""


def _dictionary() -> LearnedDictionary:
    return LearnedDictionary.random(N, B, generator=torch.Generator().manual_seed(0))


def _weights(b: int) -> torch.Tensor:
    return torch.randn(M, b, generator=torch.Generator().manual_seed(0))


def _convolutions() -> int:
    """Four of 3×3 and stride 2 on ΦΨ, a layer of 120 to 25, two heads."""
    total, height, width = 120 * 25 + 2 * 25, M, B
    for _ in range(4):
        height, width = (height + 1) // 2, (width + 1) // 2
        total += 9 * height * width
    return total


MODELS: dict[str, tuple[UnfoldedModel, int]] = {
    "lista": (LISTA(N, B, layers=3), M * N + N * B + 2 * B * B + 3 * N * B),
    "lista for one phi": (LISTA(N, B, layers=3, measurements=M), M * B + 2 * B * B + 3 * N * B),
    "alista": (ALISTA(_weights(N), layers=4), 4 * 2 * M * N),
    "alista with a dictionary": (
        ALISTA(_weights(B), layers=4, dictionary=_dictionary().matrix.detach()),
        4 * (PRODUCT + M * B + N * B),
    ),
    "lista-cp": (LISTACP(_weights(N), layers=4), 4 * 2 * M * N),
    "nalista": (
        NALISTA(_weights(N), layers=4, hidden=32),
        4 * (2 * M * N + 4 * 32 * (2 + 32) + 32 * 32 + 2 * 32),
    ),
    "ada-lista": (AdaLISTA(M, layers=3), 3 * (2 * M * N + 3 * M * M)),
    "ada-lista with a dictionary": (
        AdaLISTA(M, layers=3, dictionary=_dictionary()),
        3 * (2 * PRODUCT + 3 * M * M + N * B),
    ),
    "dlista": (DLISTA(_dictionary()), 5 * PRODUCT + N * B),
    "a-dlista adaptive": (ADLISTA(_dictionary()), 5 * PRODUCT + N * B + 3 * 32 * (7 + 3)),
    "a-dlista whitened": (
        ADLISTA(_dictionary(), covariance=torch.eye(N)),
        5 * PRODUCT + N * B + 3 * 32 * (7 + 3) + M * N * N + M * M * N + M**3 // 6 + M * M * N // 2,
    ),
    "a-dlista paper": (
        ADLISTA(_dictionary(), augmentation="paper"),
        5 * PRODUCT + N * B + 3 * (M * N * B + _convolutions()),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_macs_are_those_of_the_formula(name: str) -> None:
    model, expected = MODELS[name]
    assert macs(model, M, N) == pytest.approx(expected, rel=0.005)


def test_vlista_costs_its_posterior_more_than_a_dlista() -> None:
    """Per layer: 4 weights for each of the 4 pixels that a doubling makes of one, twice, and Φ on three vectors."""
    sizes = [(N // 2**k, B // 2**k) for k in range(5, 0, -1)]
    decoders = 2 * sum(height * width * 4 * 4 for height, width in sizes)
    inputs = 3 * (B + M) + 3 * M * N + (B + 2 * M) * sizes[0][0] * sizes[0][1]
    vlista = VLISTA(_dictionary(), M, prior_width=2, augmentation="adaptive", anchored=True)
    expected = MODELS["a-dlista adaptive"][1] + 2 * N * B + 3 * (inputs + decoders)
    assert macs(vlista, M, N) == pytest.approx(expected, rel=0.005)


def test_forming_the_product_is_what_costs() -> None:
    paper, adaptive = MODELS["a-dlista paper"][0], MODELS["a-dlista adaptive"][0]
    assert macs(paper, M, N) > 10 * macs(adaptive, M, N)


def test_counts_of_the_paper() -> None:
    assert round(parameters(LISTA(1024, 1024, layers=3)) / 1e6, 2) == 3.15
    assert parameters(NALISTA(torch.zeros(500, 1024), hidden=256)) == 333_058


def test_all_three_figures_together() -> None:
    model, expected = MODELS["dlista"]
    cost = complexity(model, M, N, batch=2)
    assert cost.parameters == 3 * N * B + 6
    assert cost.macs == expected
    assert cost.latency_ms > 0


def test_a_call_is_timed_after_a_warm_up() -> None:
    calls: list[int] = []
    best_ms(lambda: calls.append(1), repeats=3)
    assert len(calls) == 4
