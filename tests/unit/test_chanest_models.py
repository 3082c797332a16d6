"""The networks of vlista_core take a beamformer for Φ and a learned Kronecker dictionary for Ψ, complex and unexpanded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import chanest
from chanest.dictionaries import LearnedKronecker
from vlista_core import checkpoint
from vlista_core.metrics import nmse_db
from vlista_core.models import ADLISTA, DLISTA, VLISTA, UnfoldedModel
from vlista_core.problems import Batch
from vlista_core.testing import SpyMap
from vlista_core.training import Trainer


@pytest.fixture(scope="module")
def problem() -> chanest.ChannelProblem:
    return chanest.ChannelProblem(chanest.load_scenario("cdl_c_upa64x4"))


@pytest.fixture(scope="module")
def dictionary(problem: chanest.ChannelProblem) -> LearnedKronecker:
    return LearnedKronecker(problem.dictionary(oversampling=1.0))


def _nmse(model: UnfoldedModel, batch: Batch) -> float:
    return nmse_db(model.estimate(batch.y, batch.phi, batch.noise_var).signal, batch.signal)


@pytest.mark.parametrize("kind", [DLISTA, ADLISTA])
def test_training_helps_and_the_beamformer_is_never_expanded(
    kind: type[DLISTA | ADLISTA], problem: chanest.ChannelProblem, dictionary: LearnedKronecker
) -> None:
    model = kind(dictionary, layers=3)
    model.start_from(problem.sample(64, seed=1, split="train", snr_db=10.0))
    test = problem.sample(128, seed=1, snr_db=10.0)
    before = _nmse(model, test)
    trainer = Trainer(
        steps=40, batch_size=64, learning_rate=3e-3, schedule="cosine", validate_every=40, validation_samples=64
    )
    trainer.fit(model, problem, seed=1)
    assert _nmse(model, test) < before - 0.1
    spy = SpyMap(test.phi)
    model.estimate(test.y, spy, test.noise_var)
    assert spy.calls["materialize"] == 0


def test_vlista_takes_a_beamformer_and_a_structured_dictionary(
    problem: chanest.ChannelProblem, dictionary: LearnedKronecker
) -> None:
    batch = problem.sample(4, seed=1, snr_db=10.0)
    model = VLISTA(dictionary, batch.y.shape[1], prior_width=2, anchored=True, augmentation="adaptive")
    torch.autograd.backward(model.training_loss(batch, generator=torch.Generator().manual_seed(0)))
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters())
    out = model.estimate(batch.y, batch.phi, batch.noise_var, n_samples=3)
    assert out.variance is not None
    assert out.variance.shape == batch.signal.shape


def test_a_network_with_a_kronecker_dictionary_survives_the_file(
    tmp_path: Path, problem: chanest.ChannelProblem, dictionary: LearnedKronecker
) -> None:
    model = ADLISTA(dictionary, layers=2)
    path = tmp_path / "network.safetensors"
    checkpoint.save(model, path)
    again = checkpoint.load(path, expected=ADLISTA)
    batch = problem.sample(8, seed=1, snr_db=5.0)
    one, two = (each.estimate(batch.y, batch.phi, batch.noise_var).signal for each in (model, again))
    assert torch.equal(one, two)
