"""The counts of multiplications agree with torch's own, and with the paper's parameter counts."""

from __future__ import annotations

import pytest
import torch

from vlista_core.dictionaries import LearnedDictionary
from vlista_core.models import ADLISTA, ALISTA, DLISTA, LISTA, LISTACP, NALISTA, VLISTA, AdaLISTA, UnfoldedModel
from vlista_core.models.complexity import complexity, counted_macs, macs, parameters

M, N, B = 48, 96, 128


def _dictionary() -> LearnedDictionary:
    return LearnedDictionary.random(N, B, generator=torch.Generator().manual_seed(0))


def _weights(b: int) -> torch.Tensor:
    return torch.randn(M, b, generator=torch.Generator().manual_seed(0))


MODELS: dict[str, UnfoldedModel] = {
    "lista": LISTA(N, B, layers=3),
    "lista for one phi": LISTA(N, B, layers=3, measurements=M),
    "alista": ALISTA(_weights(N), layers=4),
    "alista with a dictionary": ALISTA(_weights(B), layers=4, dictionary=_dictionary().matrix.detach()),
    "lista-cp": LISTACP(_weights(N), layers=4),
    "nalista": NALISTA(_weights(N), layers=4, hidden=32),
    "ada-lista": AdaLISTA(M, layers=3),
    "ada-lista with a dictionary": AdaLISTA(M, layers=3, dictionary=_dictionary()),
    "dlista": DLISTA(_dictionary()),
    "a-dlista adaptive": ADLISTA(_dictionary()),
    "a-dlista paper": ADLISTA(_dictionary(), augmentation="paper"),
    "vlista": VLISTA(_dictionary(), M, prior_width=2),
    "vlista adaptive": VLISTA(_dictionary(), M, prior_width=2, augmentation="adaptive", anchored=True),
}


@pytest.mark.parametrize("name", MODELS)
def test_macs_are_what_torch_counts(name: str) -> None:
    assert macs(MODELS[name], M, N) == pytest.approx(counted_macs(MODELS[name], M, N), rel=0.005)


def test_forming_the_product_is_what_costs() -> None:
    paper, adaptive = MODELS["a-dlista paper"], MODELS["a-dlista adaptive"]
    assert macs(paper, M, N) > 10 * macs(adaptive, M, N)


def test_counts_of_the_paper() -> None:
    assert round(parameters(LISTA(1024, 1024, layers=3)) / 1e6, 2) == 3.15
    assert parameters(NALISTA(torch.zeros(500, 1024), hidden=256)) == 333_058


def test_all_three_figures_together() -> None:
    cost = complexity(MODELS["dlista"], M, N, batch=2)
    assert cost.parameters == 3 * N * B + 6
    assert cost.macs > 0
    assert cost.latency_ms > 0


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(ValueError, match="Linear"):
        macs(torch.nn.Linear(2, 2), M, N)
