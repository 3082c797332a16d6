"""What the LISTA family must be: counts that the paper prints, limits in which one model is another, gains over ISTA."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import null_space
from torch import Tensor

from vlista_core import checkpoint
from vlista_core.configured import Configured
from vlista_core.data.synthetic import SyntheticProblem
from vlista_core.dictionaries import LearnedDictionary
from vlista_core.models import ALISTA, LISTA, LISTACP, MODELS, NALISTA, AdaLISTA, HyperLISTA, UnfoldedModel
from vlista_core.models.fixed_dictionary import analytic_weights
from vlista_core.models.layer import Recursion, Search, greedy_layers, steady_layers
from vlista_core.problems import Batch
from vlista_core.solvers import ISTA
from vlista_core.testing import sparse_batch

DTYPES = [torch.float64, torch.complex128]


def _count(model: UnfoldedModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _signal(model: UnfoldedModel | ISTA, batch: Batch) -> Tensor:
    return model.estimate(batch.y, batch.phi, batch.noise_var).signal


def _median_db(model: UnfoldedModel | ISTA, batch: Batch) -> float:
    error = (_signal(model, batch) - batch.signal).abs().square().sum(1) / batch.signal.abs().square().sum(1)
    return float(10 * torch.log10(error.median()))


def _fixed(rows: int = 60, length: int = 120, snr_db: float | None = None) -> tuple[Batch, Batch, Tensor]:
    """Training and test samples of one Φ with unit columns, and that Φ; a tenth of the entries are not zero."""
    problem = SyntheticProblem(
        length=length, rows=rows, fixed_phi_seed=1, snr_db=snr_db, nonzeros=length // 10, dtype=torch.float64
    )
    train, test = (problem.sample(100, seed=0, split=split) for split in ("train", "test"))
    return train, test, train.phi.materialize()[0]


def test_lista_has_the_paper_s_number_of_parameters() -> None:
    assert _count(LISTA(1024, 1024, layers=3)) == 3 * 1024**2 + 3 + 1
    assert round(_count(LISTA(1024, 1024, layers=3)) / 1e6, 2) == 3.15


def test_nalista_has_the_published_number_of_parameters() -> None:
    assert _count(NALISTA(torch.zeros(250, 500), hidden=256)) == 333_058


def test_hyperlista_has_three_constants_and_no_parameters() -> None:
    model = HyperLISTA(None)
    assert _count(model) == 0
    assert [*model.state_dict()] == ["constants"]


def test_lista_counts_where_phi_is_fixed_and_for_complex_numbers() -> None:
    fixed = LISTA(20, 30, layers=4, measurements=10)
    assert _count(fixed) == 30 * 10 + 3 * 30 * 30 + 20 * 30 + 4
    assert _count(LISTA(20, 30, layers=4, measurements=10, dtype=torch.complex64)) == 2 * (_count(fixed) - 4) + 4


@pytest.mark.parametrize("dtype", DTYPES, ids=["real", "complex"])
@pytest.mark.parametrize("selection", [True, False], ids=["selection", "plain"])
def test_lista_cp_starts_as_alista_of_step_one(dtype: torch.dtype, selection: bool) -> None:
    batch = sparse_batch(dtype)
    matrix = batch.phi.materialize()[0]
    coupled = LISTACP(matrix, layers=6, dtype=dtype, selection=selection, threshold=0.3)
    analytic = ALISTA(analytic_weights(matrix), layers=6, dtype=dtype, selection=selection, threshold=0.3)
    torch.testing.assert_close(_signal(coupled, batch), _signal(analytic, batch), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=["real", "complex"])
def test_ada_lista_starts_as_ista(dtype: torch.dtype) -> None:
    """The step and threshold are float32 parameters, hence the tolerance."""
    batch = sparse_batch(dtype)
    model = AdaLISTA(batch.y.shape[1], layers=10, dtype=dtype, step=0.1, threshold=0.02)
    ista = ISTA(iterations=10, step=0.1, penalty=0.02 / 0.1, tolerance=1e-30)
    torch.testing.assert_close(_signal(model, batch), _signal(ista, batch), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=["real", "complex"])
def test_ada_lista_follows_its_equation_for_any_weights_and_dictionary(dtype: torch.dtype) -> None:
    batch = sparse_batch(dtype)
    generator = torch.Generator().manual_seed(2)
    psi = torch.randn(40, 50, dtype=dtype, generator=generator) / 40**0.5
    model = AdaLISTA(24, layers=1, dictionary=LearnedDictionary(psi), dtype=dtype, step=0.1, threshold=0.02)
    first, second = (torch.randn(24, 24, dtype=dtype, generator=generator) for _ in range(2))
    for parameter, value in ((model.residual_weight, first), (model.input_weight, second)):
        parameter.data.copy_(torch.view_as_real(value) if value.is_complex() else value)
    code = torch.randn(6, 50, dtype=dtype, generator=generator)
    a = batch.phi.materialize() @ psi
    for k in range(6):
        residual = second.mH @ batch.y[k] - first.mH @ first @ a[k] @ code[k]
        got = model.recursion(batch.y, batch.phi).gradient(0, code)[k]
        torch.testing.assert_close(got.detach(), a[k].mH @ residual)


@pytest.mark.parametrize("dtype", DTYPES, ids=["real", "complex"])
def test_lista_started_for_one_phi_is_ista_of_that_phi(dtype: torch.dtype) -> None:
    batch = sparse_batch(dtype)
    batch = batch.select(torch.zeros(6, dtype=torch.int64))
    model = LISTA(40, 40, layers=5, measurements=24, dtype=dtype)
    model.start_from(batch)
    a = batch.phi.materialize()[0]
    code = torch.zeros(6, 40, dtype=dtype)
    step = _step_of(model, a)
    for threshold in torch.nn.functional.softplus(model.threshold.detach()):
        descent = code + step * (batch.y - code @ a.mT) @ a.conj()
        code = descent * torch.relu(1 - threshold / descent.abs())
    torch.testing.assert_close(_signal(model, batch), code, rtol=1e-5, atol=1e-6)


def _step_of(model: LISTA, a: Tensor) -> float:
    encoder = torch.view_as_complex(model.encoder) if a.is_complex() else model.encoder
    return float((encoder.detach() / a.mH).real.mean())


def test_every_model_starts_better_from_data_than_it_was_built() -> None:
    train, test, phi = _fixed()
    built: list[LISTA | LISTACP | ALISTA | AdaLISTA] = [
        LISTA(120, 120, layers=3, dtype=torch.float64),
        LISTA(120, 120, layers=8, measurements=60, dtype=torch.float64),
        LISTACP(phi, layers=8, dtype=torch.float64),
        ALISTA(analytic_weights(phi), layers=8, dtype=torch.float64),
        AdaLISTA(60, layers=8, dtype=torch.float64),
    ]
    for model in built:
        before = _median_db(model, test)
        model.start_from(train)
        assert _median_db(model, test) < before - 0.3, type(model).__name__


def test_hyperlista_tuned_is_far_better_than_ista_and_generalises() -> None:
    """60×120, 12 non-zeros, noiseless, 16 layers: about -70 dB against -4 of ISTA with as many, -30 with 500."""
    train, test, phi = _fixed()
    model = HyperLISTA(phi, dtype=torch.float64)
    model.tune(train)
    assert _median_db(model, test) < -50
    assert _median_db(model, test) < _median_db(ISTA(iterations=16), test) - 40
    assert _median_db(model, test) < _median_db(ISTA(iterations=500), test) - 10
    per_sample = HyperLISTA(None, dtype=torch.float64)
    per_sample.constants.copy_(model.constants)
    torch.testing.assert_close(_signal(per_sample, test), _signal(model, test))


def test_hyperlista_follows_its_equations() -> None:
    """Two layers by hand, with the pseudo-inverse of NumPy."""
    _, test, phi = _fixed(rows=12, length=20)
    model = HyperLISTA(phi, c1=0.4, c2=0.7, c3=0.3, layers=2, dtype=torch.float64)
    a, y = phi.numpy(), test.y.numpy()
    pinv, w = np.linalg.pinv(a), analytic_weights(phi).numpy()
    x = previous = np.zeros((len(y), 20))
    for _ in range(2):
        r = (x @ a.T - y) @ pinv.T
        theta = 0.4 * np.abs(r).sum(1) / 12
        beta = 0.7 * (x != 0).sum(1) / 12
        p = np.clip(0.3 * np.log(np.abs(y @ pinv.T).sum(1) / np.abs(r).sum(1)), 0, 1)
        u = x + (y - x @ a.T) @ w + beta[:, None] * (x - previous)
        new = np.sign(u) * np.maximum(np.abs(u) - theta[:, None], 0)
        for k in range(len(u)):
            kept = np.argsort(-np.abs(u[k]))[: round(p[k] * 20)]
            kept = kept[np.abs(u[k, kept]) > theta[k]]
            new[k, kept] = u[k, kept]
        x, previous = new, x
    np.testing.assert_allclose(_signal(model, test).numpy(), x, atol=1e-10)


def test_analytic_weights_solve_the_constrained_problem_to_1e_4() -> None:
    """20 columns of a 250×500 matrix against min ‖Aᵀw‖² s.t. aᵢᵀw = 1, solved on the null space of aᵢᵀ by least squares."""
    generator = np.random.default_rng(0)
    a = generator.standard_normal((250, 500))
    a /= np.linalg.norm(a, axis=0)
    weights = analytic_weights(torch.from_numpy(a).float()).double().numpy()
    for i in generator.choice(500, 20, replace=False):
        start, basis = a[:, i], null_space(a[:, i : i + 1].T)
        free, *_ = np.linalg.lstsq(a.T @ basis, -a.T @ start, rcond=None)
        expected = start + basis @ free
        assert np.linalg.norm(weights[:, i] - expected) < 1e-4 * np.linalg.norm(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_analytic_weights_follow_rows_that_say_nothing_new(dtype: torch.dtype) -> None:
    """W of QA is QW for an isometry Q: zero rows and repeated rows are two; dead columns have no weight."""
    generator = torch.Generator().manual_seed(5)
    a = torch.randn(3, 8, 30, dtype=dtype, generator=generator)
    a[:, :, 7] = torch.finfo(dtype).eps * a[:, :, 8]
    weights = analytic_weights(a)
    assert torch.equal((weights == 0).all(1), (torch.arange(30) == 7).expand(3, -1))
    zeros, repeats = torch.eye(16, 8, dtype=dtype), torch.eye(8, dtype=dtype).repeat(2, 1) / math.sqrt(2)
    turned = torch.linalg.qr(torch.randn(16, 8, dtype=dtype, generator=generator)).Q
    for isometry in (zeros, repeats, turned):
        torch.testing.assert_close(analytic_weights(isometry @ a), isometry @ weights, rtol=0, atol=1e-5)


@pytest.mark.parametrize("search", [greedy_layers, steady_layers])
def test_a_grid_passes_over_steps_that_give_no_number(search: Search) -> None:
    signal = torch.ones(2, 3)
    recursion = Recursion(
        torch.zeros(2, 3),
        lambda t, code: signal - code,
        lambda t, code, threshold: code,
        lambda code: torch.where(code < 0.45, torch.nan, code),
    )
    chosen = search(recursion, 1, signal, [0.3, 0.4, 0.6, 0.5], torch.ones(1, 1))
    assert [layer.step for layer in chosen] == [0.6]


@pytest.mark.parametrize("cls", [ALISTA, NALISTA])
def test_rows_of_zeros_change_nothing_where_weights_are_those_of_the_sample(cls: type[ALISTA | NALISTA]) -> None:
    """What an untrained network makes of fewer rows is its own; that there are rows of zeros beside them must not show."""
    phi = torch.randn(4, 8, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    y = torch.randn(4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    model = cls(None, layers=3, dtype=torch.float64, selection=False)
    if isinstance(model, NALISTA):
        model.input_scale.fill_(
            math.inf
        )  # The cell sees the mean of the residual, and there are more rows to take it over.
    padded = model.estimate(torch.cat([y, 0 * y], 1), torch.cat([phi, 0 * phi], 1), 0.0)
    torch.testing.assert_close(padded.signal, model.estimate(y, phi, 0.0).signal)


@pytest.mark.parametrize("name", MODELS)
def test_a_file_of_any_registered_model_loads_without_registration(name: str) -> None:
    assert MODELS[name].__name__ in checkpoint.registered_models()


def test_nalista_s_standardisation_survives_a_file(tmp_path: Path) -> None:
    train, test, phi = _fixed()
    model = NALISTA(analytic_weights(phi), layers=4, hidden=8, dtype=torch.float64)
    model.start_from(train)
    assert not torch.equal(model.input_mean, torch.zeros(2))
    checkpoint.save(model, tmp_path / "model.safetensors")
    loaded = checkpoint.load(tmp_path / "model.safetensors", expected=NALISTA)
    assert torch.equal(loaded.input_mean, model.input_mean)
    assert torch.equal(loaded.input_scale, model.input_scale)
    assert torch.equal(_signal(loaded, test), _signal(model, test))


def test_hyperlista_s_constants_survive_a_file(tmp_path: Path) -> None:
    _, test, phi = _fixed()
    model = HyperLISTA(phi, dtype=torch.float64)
    model.constants.copy_(torch.tensor([1.7, 0.9, 0.03]))
    checkpoint.save(model, tmp_path / "model.safetensors")
    loaded = checkpoint.load(tmp_path / "model.safetensors")
    assert isinstance(loaded, HyperLISTA)
    assert torch.equal(_signal(loaded, test), _signal(model, test))


def test_a_class_of_the_user_s_cannot_take_the_name_of_a_model() -> None:
    class LISTA(torch.nn.Module, Configured):
        pass

    with pytest.raises(ValueError, match=r"a class named LISTA is already registered, from vlista_core.models.lista"):
        checkpoint.register_model(LISTA)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LISTA(0, 4), r"length must be an integer of at least 1, got 0"),
        (lambda: LISTA(4, 4, measurements=0), r"measurements must be an integer of at least 1, got 0"),
        (lambda: LISTACP(torch.zeros(3)), r"matrix must be torch.float32 of shape \[m, n\], got torch.float32 \[3\]"),
        (lambda: LISTACP(torch.zeros(3, 4), dictionary=torch.zeros(5, 6)), r"dictionary must be .* \[4, atoms\]"),
        (lambda: HyperLISTA(None, c2=-1.0), r"c2 must be finite and non-negative, got -1.0"),
        (lambda: AdaLISTA(3, dictionary=torch.zeros(4, 5).double()), r"dictionary must have the model's dtype"),
        (lambda: AdaLISTA(3, layers=0), r"layers must be an integer of at least 1, got 0"),
    ],
)
def test_a_wrong_argument_is_named(build: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()  # type: ignore[operator]
