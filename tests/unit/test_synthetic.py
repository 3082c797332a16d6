"""The synthetic problem: same draws whatever the batch, splits apart, the stated statistics."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vlista_core.data.synthetic import SyntheticProblem, benchmark
from vlista_core.draws import sample_generators
from vlista_core.problems import Batch

PROBLEM = SyntheticProblem(length=40, rows=20, snr_db=20.0)


def test_draws_do_not_depend_on_batch_size_nor_on_the_global_generator() -> None:
    whole = PROBLEM.sample(7, seed=3)
    torch.rand(5)
    parts = [PROBLEM.sample(1, seed=3, start=index) for index in range(7)]
    for name in ("signal", "y", "noise_var"):
        assert torch.equal(getattr(whole, name), torch.cat([getattr(part, name) for part in parts])), name
    assert torch.equal(whole.phi.materialize(), torch.cat([part.phi.materialize() for part in parts]))


def test_splits_and_seeds_differ() -> None:
    draws = [
        PROBLEM.sample(50, seed=seed, split=split).phi.materialize()[:, 0, 0]
        for seed in (0, 1)
        for split in ("train", "validation", "test")
    ]
    assert torch.cat(draws).unique().numel() == 300


def test_no_two_samples_of_one_seed_share_a_generator_state() -> None:
    states = {
        generator.initial_seed()
        for split in ("train", "validation", "test")
        for generator in sample_generators(5, split, range(3000))
    }
    assert len(states) == 9000


def test_statistics_are_as_stated() -> None:
    batch = SyntheticProblem(length=100, rows=50, sparsity=0.1, snr_db=10.0).sample(2000, seed=0)
    assert float((batch.signal != 0).double().mean()) == pytest.approx(0.1, abs=0.003)
    assert float(batch.signal[batch.signal != 0].var()) == pytest.approx(1.0, abs=0.03)
    assert torch.allclose(batch.phi.column_norms(), torch.ones(1, 1))
    clean = batch.phi.apply(batch.signal)
    snr = clean.square().sum() / (batch.y - clean).square().sum()
    assert 10 * math.log10(float(snr)) == pytest.approx(10.0, abs=0.15)
    assert float((batch.y - clean).var()) == pytest.approx(float(batch.noise_var[0]), rel=0.02)


def test_complex_draws_have_unit_power() -> None:
    batch = SyntheticProblem(length=100, rows=50, nonzeros=10, dtype=torch.complex64).sample(500, seed=0)
    assert ((batch.signal != 0).sum(1) == 10).all()
    assert float(batch.signal.abs().square().sum(1).mean()) == pytest.approx(10.0, rel=0.03)
    assert torch.equal(batch.y, batch.phi.apply(batch.signal))


def test_fixed_phi_is_one_matrix_for_all_splits() -> None:
    problem = SyntheticProblem(length=40, rows=20, fixed_phi_seed=9)
    a, b = problem.sample(3, seed=0, split="train"), problem.sample(2, seed=1, split="test")
    assert a.phi.batch is None
    assert torch.equal(a.phi.materialize(), b.phi.materialize())


def test_benchmark_presets() -> None:
    problem = benchmark("250x1000", snr_db=None)
    assert (problem.measurements, problem.signal_length, problem.sparsity) == (250, 1000, 0.05)
    with pytest.raises(ValueError, match="250x500, 250x1000"):
        benchmark("1x1")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"length": 0}, "length"),
        ({"rows": 2.5}, "rows"),
        ({"sparsity": 0.0}, "sparsity"),
        ({"nonzeros": 41}, "nonzeros"),
    ],
)
def test_bad_parameters_are_named(change: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        SyntheticProblem(**{"length": 40, "rows": 20} | change)


def test_bad_draws_are_named() -> None:
    calls: tuple[tuple[Callable[[], Batch], str], ...] = (
        (lambda: PROBLEM.sample(0, seed=0), "count"),
        (lambda: PROBLEM.sample(1, seed=-1), "seed"),
        (lambda: PROBLEM.sample(1, seed=0, split="dev"), "split"),  # type: ignore[arg-type]
        (lambda: PROBLEM.sample(1, seed=0, start=-1), "start"),
    )
    for call, word in calls:
        with pytest.raises(ValueError, match=word):
            call()
