"""DLISTA, A-DLISTA and VLISTA: parameter counts of the paper, and each as a special case of the next."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from vlista_core.data.synthetic import SyntheticProblem
from vlista_core.dictionaries import LearnedDictionary
from vlista_core.linops import DenseMap
from vlista_core.metrics import nmse_db
from vlista_core.models import ADLISTA, DLISTA, VLISTA, UnfoldedModel
from vlista_core.models.augmentation import Adaptation, Augmentation, LayerState, convolved_product
from vlista_core.models.distributions import Gaussian
from vlista_core.models.vlista import gaussian_log_likelihood
from vlista_core.problems import Batch
from vlista_core.solvers import ISTA
from vlista_core.testing import sparse_batch
from vlista_core.theory import check_proposition
from vlista_core.training import Trainer

DTYPES = [torch.float64, torch.complex128]


def _dictionary(dtype: torch.dtype = torch.float64, n: int = 40, atoms: int = 48) -> LearnedDictionary:
    return LearnedDictionary.random(n, atoms, generator=torch.Generator().manual_seed(3), dtype=dtype)


def _count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _signal(model: UnfoldedModel, batch: Batch) -> Tensor:
    return model.estimate(batch.y, batch.phi, batch.noise_var).signal


class Constant(Augmentation):
    """The same step and threshold for every sample and layer."""

    def __init__(self, step: float, threshold: float) -> None:
        super().__init__()
        self.step, self.threshold = step, threshold

    def forward(self, state: LayerState) -> Adaptation:
        one = torch.ones_like(state.noise_var)[:, None]
        return Adaptation(self.step * one, self.threshold * one)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7, 5, 6), (8, 9, 11), (1, 3, 1)])
def test_the_first_convolution_is_that_of_the_formed_product(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    (m, n, b), generator = shape, torch.Generator().manual_seed(0)
    phi, psi = (torch.randn(3, *size, dtype=dtype, generator=generator) for size in ((m, n), (n, b)))
    parts = torch.randn(2 if dtype.is_complex else 1, 3, 3, dtype=torch.float64, generator=generator)
    formed = phi @ psi
    image = torch.view_as_real(formed).movedim(-1, 1) if dtype.is_complex else formed[:, None]
    kernel = torch.complex(parts[0], -parts[1]) if dtype.is_complex else parts[0]
    expected = torch.nn.functional.conv2d(image, parts[None], stride=2, padding=1)[:, 0]
    torch.testing.assert_close(convolved_product(phi, psi, kernel), expected)
    shared = torch.nn.functional.conv2d(image[:1], parts[None], stride=2, padding=1)[:, 0]
    torch.testing.assert_close(convolved_product(phi[:1], psi[:1], kernel), shared)


def test_parameter_counts_are_those_printed_in_the_paper() -> None:
    dictionary = LearnedDictionary(torch.zeros(1024, 1024))
    adlista = ADLISTA(dictionary, augmentation="paper")
    vlista = VLISTA(dictionary, 500)
    millions = {
        "a-dlista": _count(adlista) / 1e6,
        "likelihood": (_count(vlista.decoder) + _count(vlista.augmentation)) / 1e6,
        "posterior": _count(vlista.posterior) / 1e6,
        "prior": _count(vlista.prior) / 1e6,
    }
    rounded = {name: round(value, 2) for name, value in millions.items()}
    assert rounded == {"a-dlista": 3.15, "likelihood": 1.05, "posterior": 2.08, "prior": 1.10}
    assert round(_count(adlista.augmentation) / 1e3, 2) == 3.11


@pytest.mark.parametrize("dtype", DTYPES, ids=["real", "complex"])
def test_dlista_with_one_dictionary_step_and_threshold_is_ista(dtype: torch.dtype) -> None:
    batch, dictionary = sparse_batch(dtype), _dictionary(dtype)
    step, threshold, layers = 0.2, 0.02, 7
    dlista = DLISTA(dictionary, layers=layers, step=step, threshold=threshold)
    ista = ISTA(
        dictionary=dictionary.frozen(), step=step, penalty=threshold / step, iterations=layers, tolerance=1e-300
    )
    expected = ista.estimate(batch.y, batch.phi, batch.noise_var).signal
    assert torch.allclose(_signal(dlista, batch), expected, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=["real", "complex"])
def test_a_dlista_with_a_constant_augmentation_is_dlista(dtype: torch.dtype) -> None:
    batch, dictionary = sparse_batch(dtype), _dictionary(dtype)
    dlista = DLISTA(dictionary, layers=4, step=0.3, threshold=0.01)
    adlista = ADLISTA(dictionary, layers=4)
    adlista.augmentation = Constant(0.3, 0.01)
    assert torch.allclose(_signal(adlista, batch), _signal(dlista, batch), atol=1e-6)


@pytest.mark.parametrize("kind", ["paper", "adaptive"])
@pytest.mark.parametrize("dtype", DTYPES, ids=["real", "complex"])
def test_vlista_without_variance_is_a_dlista_on_the_posterior_mean(kind: str, dtype: torch.dtype) -> None:
    batch, dictionary = sparse_batch(dtype), _dictionary(dtype)
    vlista = VLISTA(dictionary, 24, layers=3, prior_width=2, augmentation=kind, anchored=True)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in vlista.posterior.centre_decoder.parameters():
            parameter.zero_()  # the mean of every posterior is then the decoder
        decoder = vlista.posterior.raw_decoder
        assert isinstance(decoder, torch.nn.Sequential)
        last = decoder[-1]
        assert isinstance(last, torch.nn.ConvTranspose2d)
        assert last.bias is not None
        last.weight.zero_()
        last.bias.fill_(-60.0)
    adlista = ADLISTA(dictionary, layers=3, augmentation=kind)  # type: ignore[arg-type]
    adlista.augmentation = vlista.augmentation
    expected = _signal(adlista, batch)
    assert torch.allclose(_signal(vlista, batch), expected, atol=1e-12)
    drawn = vlista.estimate(batch.y, batch.phi, batch.noise_var, n_samples=3)
    assert torch.allclose(drawn.signal, expected, atol=1e-3)


def test_adaptive_augmentation_is_blind_to_units() -> None:
    batch = sparse_batch(torch.float64)
    model = ADLISTA(_dictionary(), layers=4)
    with torch.no_grad():
        model.augmentation.head.weight.normal_(std=0.1, generator=torch.Generator().manual_seed(0))  # type: ignore[union-attr, operator]
    phi = DenseMap(3.0 * batch.phi.materialize())
    scaled = model.estimate(12.0 * batch.y, phi, 144.0 * batch.noise_var).signal
    assert torch.allclose(scaled, 4.0 * _signal(model, batch), rtol=1e-6, atol=1e-9)


def test_adaptive_parameters_differ_between_samples_and_the_noise_level_matters() -> None:
    batch = sparse_batch(torch.float64)
    model = ADLISTA(_dictionary(), layers=3)
    with torch.no_grad():
        model.augmentation.head.weight.normal_(std=0.1, generator=torch.Generator().manual_seed(0))  # type: ignore[union-attr, operator]
    layers = model.unroll(batch.y, batch.phi, batch.noise_var)
    assert all(len(set(layer.step.tolist())) == len(batch) for layer in layers)
    louder = model.unroll(batch.y, batch.phi, 100 * batch.noise_var)
    assert not torch.allclose(layers[0].threshold, louder[0].threshold, rtol=0.01, atol=0.0)


@pytest.mark.parametrize("kind", ["dlista", "a-dlista"])
def test_the_proposition_holds_along_the_layers_of_a_model(kind: str) -> None:
    problem = SyntheticProblem(length=40, rows=2000, nonzeros=2, dtype=torch.float64)
    batch = problem.sample(32, seed=1)
    identity = LearnedDictionary(torch.eye(40, dtype=torch.float64))
    options = {"layers": 3, "step": 1.0, "threshold": 2.0}
    model = DLISTA(identity, **options) if kind == "dlista" else ADLISTA(identity, augmentation="paper", **options)  # type: ignore[arg-type]
    checks = check_proposition(model, batch)
    assert len(checks) == 3
    for check in checks:
        assert check.assumed.any()
        assert int(check.false_positives[check.assumed].sum()) == 0
        assert bool((check.error <= check.bound * (1 + 1e-9))[check.assumed].all())


def test_a_start_with_few_measurements_is_not_nothing() -> None:
    """Steps are small then; thresholds in units of the gradient left no entry, and no way to learn."""
    problem = SyntheticProblem(length=200, rows=4, sparsity=0.05, snr_db=40.0)
    model = DLISTA(LearnedDictionary.random(200, 200, generator=torch.Generator().manual_seed(0)))
    batch = problem.sample(64, seed=9, split="train")
    model.start_from(batch)
    code = model.estimate(batch.y, batch.phi, batch.noise_var).code
    assert code is not None
    assert float((code != 0).float().mean()) > 0.1


def test_calibration_starts_an_adaptive_stack_at_a_useful_error() -> None:
    problem = SyntheticProblem(length=100, rows=50, sparsity=0.05, snr_db=40.0)
    model = ADLISTA(LearnedDictionary(torch.eye(100)), layers=10)
    test = problem.sample(200, seed=9)
    before = nmse_db(_signal(model, test), test.signal)
    model.start_from(problem.sample(200, seed=9, split="train"))
    after = nmse_db(_signal(model, test), test.signal)
    assert after < min(before, -18.0)


def test_calibration_starts_the_papers_network_no_worse_than_ista() -> None:
    problem = SyntheticProblem(length=100, rows=50, sparsity=0.05, snr_db=40.0)
    model = ADLISTA(LearnedDictionary(torch.eye(100)), layers=10, augmentation="paper")
    model.start_from(problem.sample(200, seed=9, split="train"))
    test = problem.sample(200, seed=9)
    ista = ISTA(iterations=10, penalty=0.1).estimate(test.y, test.phi, test.noise_var).signal
    assert nmse_db(_signal(model, test), test.signal) < nmse_db(ista, test.signal) + 0.3


def test_the_elbo_is_the_sum_of_its_terms() -> None:
    """Against torch.distributions, with one layer so that no conditional prior enters."""
    batch = sparse_batch(torch.float64)
    model = VLISTA(_dictionary(), 24, layers=1, prior_width=2, noise=0.3)
    bound = model.elbo(batch, torch.Generator().manual_seed(1))
    noise = torch.randn(6, 40, 48, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    signals, _, posteriors, _ = model.run(batch.y, batch.phi, batch.noise_var, [noise])
    normal = torch.distributions.Normal(signals[0], 0.3)
    log_density: torch.Tensor = normal.log_prob(batch.signal)
    assert torch.allclose(bound.log_likelihood, log_density.sum(1))
    posterior = torch.distributions.Normal(posteriors[0].centre, posteriors[0].deviation)  # type: ignore[attr-defined]
    prior = torch.distributions.Normal(0.0, 1.0)
    assert torch.allclose(bound.divergence, torch.distributions.kl_divergence(posterior, prior).sum((1, 2)))
    loss = model.training_loss(batch, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(loss, -(bound.log_likelihood - 1e-3 * bound.divergence).mean())


def test_complex_likelihood_integrates_to_one() -> None:
    grid = torch.linspace(-3, 3, 301, dtype=torch.float64)
    plane = torch.complex(grid[:, None].expand(301, 301), grid[None, :].expand(301, 301)).reshape(-1, 1)
    density = torch.exp(gaussian_log_likelihood(plane, torch.full_like(plane, 0.2 + 0.1j), 0.5))
    assert float(density.sum() * (grid[1] - grid[0]) ** 2) == pytest.approx(1.0, abs=1e-4)


def test_the_elbo_rises_under_training() -> None:
    problem = SyntheticProblem(length=40, rows=24, sparsity=0.1, snr_db=30.0)
    model = VLISTA(
        _dictionary(torch.float32, 40, 40), 24, layers=2, prior_width=2, anchored=True, augmentation="adaptive"
    )
    held_out = problem.sample(64, seed=4)

    def bound() -> float:
        with torch.no_grad():
            value = model.elbo(held_out, torch.Generator().manual_seed(0)).value(model.divergence_weight)
        return float(value.mean())

    before = bound()
    Trainer(steps=60, batch_size=32, learning_rate=2e-3, validate_every=60, validation_samples=32).fit(
        model, problem, seed=0
    )
    assert bound() > before + 20


def test_doubt_sets_the_noise_of_the_likelihood_and_where_deviations_start() -> None:
    """Doubt at its best adds about wnδ² to the squared error of a pixel, and deviations start above the best ones."""
    problem = SyntheticProblem(length=40, rows=24, sparsity=0.1, snr_db=30.0)
    batch = problem.sample(160, seed=4, split="train")
    found = {}
    for constant in (False, True):
        model = VLISTA(_dictionary(torch.float32, 40, 40), 24, prior_width=2, doubt=0.1, constant=constant)
        model.start_from(batch)
        with torch.no_grad():
            run = model.run(
                batch.y, batch.phi, batch.noise_var, model.draw_noise(160, torch.Generator().manual_seed(0))
            )
        deviations = [posterior.deviation for posterior in run.posteriors if isinstance(posterior, Gaussian)]
        found[constant] = float(deviations[0].mean())
        error = float((run.signals[-1] - batch.signal).square().mean())
        assert float(model.noise) == pytest.approx((0.1 * error / (1e-3 * 40)) ** 0.5, rel=0.3)
    assert found[False] > found[True] > 0.0


def test_the_prior_is_not_used_at_inference() -> None:
    batch = sparse_batch(torch.float64)
    model = VLISTA(_dictionary(), 24, prior_width=2)
    before = model.estimate(batch.y, batch.phi, batch.noise_var, n_samples=2)
    with torch.no_grad():
        for parameter in model.prior.parameters():
            parameter.fill_(math.nan)
    after = model.estimate(batch.y, batch.phi, batch.noise_var, n_samples=2)
    assert torch.equal(before.signal, after.signal)


def test_samples_give_the_mean_and_the_variance_and_do_not_depend_on_the_batch() -> None:
    batch = sparse_batch(torch.complex128)
    model = VLISTA(_dictionary(torch.complex128), 24, prior_width=2, deviation=0.05)
    out = model.estimate(batch.y, batch.phi, batch.noise_var, n_samples=5, seed=3)
    assert out.samples is not None
    assert out.variance is not None
    assert out.samples.shape == (5, *batch.signal.shape)
    assert torch.allclose(out.signal, out.samples.mean(0))
    assert torch.allclose(out.variance, out.samples.var(0) + 0.1**2, atol=1e-7)
    assert float(out.variance.min()) >= 0
    assert float(out.variance.max()) > 0
    part = batch.select(torch.tensor([4, 1]))
    alone = model.estimate(part.y, part.phi, part.noise_var, n_samples=5, seed=3)
    assert torch.allclose(alone.signal, out.signal[[4, 1]], atol=1e-10)
    other = model.estimate(batch.y, batch.phi, batch.noise_var, n_samples=5, seed=4)
    assert not torch.allclose(other.signal, out.signal)


@pytest.mark.parametrize("anchored", [False, True])
def test_samples_are_those_of_whole_runs_however_the_batch_is_cut(
    anchored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = sparse_batch(torch.float64)
    model = VLISTA(_dictionary(), 24, prior_width=2, deviation=0.05, anchored=anchored)
    monkeypatch.setattr("vlista_core.models.vlista._CACHED", 2 * math.prod(model.decoder.shape))
    monkeypatch.setattr("vlista_core.models.vlista._PIECES", 2)
    assert len(batch) > 4
    got = model.estimate(batch.y, batch.phi, batch.noise_var, n_samples=3, seed=2).samples
    assert got is not None
    for draw in range(3):
        generator = torch.Generator().manual_seed(2 * 1_000_003 + draw)
        shape = (1, *model.decoder.shape)
        noise = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(model.layers)]
        with torch.no_grad():
            whole = model.run(batch.y, batch.phi, batch.noise_var, noise)[0][-1]
        assert torch.allclose(got[draw], whole, atol=1e-12)


@pytest.mark.parametrize(
    ("build", "word"),
    [
        (lambda: DLISTA(_dictionary(), layers=0), "layers"),
        (lambda: DLISTA(torch.eye(3)), "LearnedMap"),  # type: ignore[arg-type]
        (lambda: ADLISTA(_dictionary(), augmentation="cnn"), "augmentation"),  # type: ignore[arg-type]
        (lambda: VLISTA(_dictionary(), 24, noise=0.0), "noise"),
        (lambda: VLISTA(_dictionary(), 24, family="flow"), "family must be one of gaussian"),
        (lambda: VLISTA(_dictionary(), 0), "measurements"),
    ],
)
def test_bad_arguments_are_named(build: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        build()
