"""The counts of multiplications are those of the formulas, and parameters those of the paper."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch

from vlista_core.dictionaries import LearnedDictionary
from vlista_core.experiments.complexity import FORMULAS, ISTA_ITERATIONS, Complexity
from vlista_core.experiments.experiment import published
from vlista_core.models import ADLISTA, ALISTA, DLISTA, LISTA, LISTACP, NALISTA, VLISTA, AdaLISTA, UnfoldedModel
from vlista_core.models.complexity import complexity, latency, macs, parameters
from vlista_core.study import Context, Provenance, Record, frame

M, N, B = 48, 96, 128
PRODUCT = M * N + N * B
"""ΦΨx with two factors."""


def _dictionary() -> LearnedDictionary:
    return LearnedDictionary.random(N, B, generator=torch.Generator().manual_seed(0))


def _weights(b: int) -> torch.Tensor:
    return torch.randn(M, b, generator=torch.Generator().manual_seed(0))


def _augmentation() -> int:
    """Four convolutions of 3×3 and stride 2, the first in part on Ψ, then a product; a layer of 120 to 25, two heads."""
    total, height, width = 120 * 25 + 2 * 25, M // 2, B // 2
    total += 9 * N * width + height * 3 * N * width
    for _ in range(3):
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
        5 * PRODUCT + N * B + 3 * _augmentation(),
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
    cost = complexity(model, M, N, batch=2, batches=5)
    assert cost.parameters == 3 * N * B + 6
    assert cost.macs == expected
    assert cost.latency.mean_ms > 0
    assert cost.latency.batches == 5


def test_a_latency_is_the_mean_over_batches_after_a_warm_up_and_leaves_out_their_making() -> None:
    waits = {0: 0.05, 1: 0.002, 2: 0.004, 3: 0.006}

    def prepare(number: int) -> Callable[[], object]:
        time.sleep(0.01)
        return lambda: time.sleep(waits[number])

    found = latency(prepare, batches=3)
    assert found.batches == 3
    assert 4.0 <= found.mean_ms < 10.0
    assert 0.5 < found.error_ms < 5.0


def test_a_latency_has_fewer_batches_where_they_take_long_and_never_fewer_than_three() -> None:
    assert latency(lambda number: lambda: time.sleep(0.001), batches=100, seconds=0.0).batches == 3


def test_processor_time_leaves_waiting_out() -> None:
    assert latency(lambda number: lambda: time.sleep(0.02), batches=3, clock=time.process_time).mean_ms < 10.0


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    study = Complexity(measurements=(10,), batches=3, seconds=0.0, models=COUNTED)
    done = [Record(cell=cell, row=study.run(cell, Context(Path())), provenance=Provenance()) for cell in study.cells()]
    return frame(done)


COUNTED = ("ista", "a-dlista", "nalista", "vlista-prior", "vlista-posterior", "vlista-likelihood")


def test_the_parts_of_vlista_have_the_papers_parameters(rows: pd.DataFrame) -> None:
    """The posterior alone depends on m: 2·490·1024 fewer weights at m = 10."""
    found = {line["model"]: line for line in rows.to_dict("records")}
    assert round(found["vlista-prior"]["parameters"] / 1e6, 2) == published("parameters_millions", "vlista-prior")
    assert round(found["vlista-likelihood"]["parameters"] / 1e6, 2) == 1.05
    assert found["vlista-posterior"]["parameters"] == 2_076_851 - 2 * 490 * 1024
    assert found["a-dlista"]["augmentation_parameters"] == 3113
    assert found["a-dlista"]["parameters"] == 3 * 1024**2 + 3113


def test_counted_multiplications_are_of_the_order_of_the_papers_formulas(rows: pd.DataFrame) -> None:
    """The formula of ISTA forms ΦΨ; ours has Ψ = I and at most 200 products of either kind for the norm."""
    found = {line["model"]: line["macs"] for line in rows.to_dict("records")}
    steps = found.pop("ista") / (10 * 1024)
    assert found.pop("nalista") < FORMULAS["nalista"](10)  # the formula forms ΦΨ here too
    assert 2 * ISTA_ITERATIONS < steps <= 2 * (ISTA_ITERATIONS + 200)
    for model, count in found.items():
        formula = FORMULAS[model](10)
        assert formula / 6 < count < 2 * formula, model


def test_the_table_has_the_spectral_norm_apart_and_no_time_for_the_prior(rows: pd.DataFrame) -> None:
    costs, counts = Complexity(measurements=(10,), models=COUNTED).tables(rows)
    ista, adlista, _, prior = costs.lines[:4]
    assert ista[3].count("±") == 2
    assert ista[4:] == ("3", "54 ± 0.6 (norm: 42 ± 0.6)")
    assert adlista[1:3] == ("3.149 (augmentation: 0.00311)", "3.150 (augmentation: 0.00311)")
    assert prior[3:] == ("–", "–", "–")
    assert "–" not in counts.lines[3]
    norm = rows.set_index("model").loc["ista"]
    assert 0 < norm["norm_ms"] < norm["latency_ms"]
