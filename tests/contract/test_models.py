"""Every registered model meets the estimator contract, in each of its forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from vlista_core.dictionaries import LearnedDictionary
from vlista_core.linops import DenseMap
from vlista_core.models import (
    ADLISTA,
    ALISTA,
    DLISTA,
    LISTA,
    LISTACP,
    MODELS,
    NALISTA,
    VLISTA,
    AdaLISTA,
    HyperLISTA,
    UnfoldedModel,
)
from vlista_core.models.fixed_dictionary import analytic_weights
from vlista_core.problems import Batch
from vlista_core.testing import ESTIMATOR_CHECKS, EstimatorCase, sparse_batch

M, N, ATOMS, LAYERS = 24, 40, 60, 3
Make = Callable[[torch.dtype], UnfoldedModel]
ONE_PHI = "its weights are those of one phi"
UNTRAINED = "its steps are untrained, and as long for half the rows as for all"


def _dictionary(dtype: torch.dtype) -> Tensor:
    return torch.randn(N, ATOMS, dtype=dtype, generator=torch.Generator().manual_seed(1)) / math.sqrt(N)


def _learned(dtype: torch.dtype) -> LearnedDictionary:
    return LearnedDictionary(_dictionary(dtype))


def _matrix(dtype: torch.dtype) -> Tensor:
    return sparse_batch(dtype, m=M, n=N).phi.materialize()[0]


def _overcomplete(dtype: torch.dtype) -> Batch:
    return sparse_batch(dtype, m=M, n=N, dictionary=DenseMap(_dictionary(dtype)))


def _one_phi(dtype: torch.dtype) -> Batch:
    """Every sample is seen through the Φ of `_matrix`."""
    batch = sparse_batch(dtype, m=M, n=N)
    phi = DenseMap(_matrix(dtype).expand(len(batch), -1, -1).contiguous())
    return replace(batch, y=phi.apply(batch.signal), phi=phi)


def _case(
    name: str,
    make: Make,
    sample: Callable[[torch.dtype], Batch] = sparse_batch,
    *,
    ignores_phi: str = "",
    no_bound: str = "",
) -> EstimatorCase:
    return EstimatorCase(name, lambda dtype, device: make(dtype).to(device), sample, ignores_phi, no_bound)


def _weights(dtype: torch.dtype) -> Tensor:
    return analytic_weights(_matrix(dtype))


CASES: dict[str, list[EstimatorCase]] = {
    "lista": [
        _case("lista", lambda dtype: LISTA(N, N, layers=LAYERS, dtype=dtype)),
        _case("lista overcomplete", lambda dtype: LISTA(N, ATOMS, layers=LAYERS, dtype=dtype), _overcomplete),
        _case("lista undercomplete", lambda dtype: LISTA(N, N // 2, layers=LAYERS, dtype=dtype)),
        _case(
            "lista for one phi",
            lambda dtype: LISTA(N, ATOMS, layers=LAYERS, measurements=M, dtype=dtype),
            _one_phi,
            ignores_phi="B, V and D stand in its place",
        ),
    ],
    "lista-cp": [
        _case(
            "lista-cp", lambda dtype: LISTACP(_matrix(dtype), layers=LAYERS, dtype=dtype), _one_phi, no_bound=ONE_PHI
        ),
        _case(
            "lista-cp overcomplete",
            lambda dtype: LISTACP(_matrix(dtype), layers=LAYERS, dictionary=_dictionary(dtype), dtype=dtype),
            _one_phi,
            no_bound=ONE_PHI,
        ),
    ],
    "alista": [
        _case("alista", lambda dtype: ALISTA(_weights(dtype), layers=LAYERS, dtype=dtype), _one_phi, no_bound=ONE_PHI),
        _case(
            "alista per sample overcomplete",
            lambda dtype: ALISTA(None, layers=LAYERS, dictionary=_dictionary(dtype), dtype=dtype),
            _overcomplete,
            no_bound=UNTRAINED,
        ),
    ],
    "nalista": [
        _case(
            "nalista",
            lambda dtype: NALISTA(_weights(dtype), layers=LAYERS, hidden=8, dtype=dtype),
            _one_phi,
            no_bound=ONE_PHI,
        ),
        _case(
            "nalista per sample overcomplete",
            lambda dtype: NALISTA(None, layers=LAYERS, hidden=8, dictionary=_dictionary(dtype), dtype=dtype),
            _overcomplete,
            no_bound=UNTRAINED,
        ),
    ],
    "hyperlista": [
        _case(
            "hyperlista",
            lambda dtype: HyperLISTA(_matrix(dtype), layers=LAYERS, dtype=dtype),
            _one_phi,
            no_bound=ONE_PHI,
        ),
        _case(
            "hyperlista per sample overcomplete",
            lambda dtype: HyperLISTA(None, layers=LAYERS, dictionary=_dictionary(dtype), dtype=dtype),
            _overcomplete,
            no_bound=UNTRAINED,
        ),
    ],
    "ada-lista": [
        _case("ada-lista", lambda dtype: AdaLISTA(M, layers=LAYERS, dtype=dtype)),
        _case(
            "ada-lista overcomplete",
            lambda dtype: AdaLISTA(M, layers=LAYERS, dictionary=_dictionary(dtype), dtype=dtype),
            _overcomplete,
        ),
        _case(
            "ada-lista learned",
            lambda dtype: AdaLISTA(M, layers=LAYERS, dictionary=LearnedDictionary(_dictionary(dtype)), dtype=dtype),
            _overcomplete,
        ),
    ],
    "dlista": [_case("dlista", lambda dtype: DLISTA(_learned(dtype), layers=LAYERS), _overcomplete)],
    "a-dlista": [
        _case("a-dlista adaptive", lambda dtype: ADLISTA(_learned(dtype), layers=LAYERS), _overcomplete),
        _case(
            "a-dlista whitened",
            lambda dtype: ADLISTA(_learned(dtype), layers=LAYERS, covariance=torch.eye(N, dtype=dtype)),
            _overcomplete,
            no_bound=UNTRAINED,
        ),
        _case(
            "a-dlista paper",
            lambda dtype: ADLISTA(_learned(dtype), layers=LAYERS, augmentation="paper"),
            _overcomplete,
        ),
    ],
    "vlista": [
        _case(
            "vlista",
            lambda dtype: VLISTA(_learned(dtype), M, layers=LAYERS, prior_width=2),
            _overcomplete,
        ),
        _case(
            "vlista anchored",
            lambda dtype: VLISTA(
                _learned(dtype), M, layers=LAYERS, prior_width=2, anchored=True, augmentation="adaptive"
            ),
            _overcomplete,
        ),
    ],
}
ALL = [case for cases in CASES.values() for case in cases]


def test_every_registered_model_has_a_case() -> None:
    assert CASES.keys() == MODELS.keys()
    for name, cases in CASES.items():
        for case in cases:
            assert type(case.make(torch.float64, torch.device("cpu"))) is MODELS[name], case.name


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128, torch.float32], ids=["real", "complex", "single"])
@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
@pytest.mark.parametrize("check", ESTIMATOR_CHECKS, ids=lambda check: check.__name__)
def test_model_contract(
    check: Callable[[EstimatorCase, torch.dtype], None], case: EstimatorCase, dtype: torch.dtype
) -> None:
    check(case, dtype)


def _model(case: EstimatorCase, dtype: torch.dtype) -> UnfoldedModel:
    model = case.make(dtype, torch.device("cpu"))
    assert isinstance(model, UnfoldedModel)
    return model


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=["real", "complex"])
@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_the_trajectory_has_a_signal_for_each_layer_and_ends_in_the_estimate(
    case: EstimatorCase, dtype: torch.dtype
) -> None:
    batch = case.sample(dtype)
    out = case.run(batch)
    assert out.trajectory is not None
    assert [signal.shape for signal in out.trajectory] == [batch.signal.shape] * LAYERS
    assert torch.equal(out.trajectory[-1], out.signal)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128, torch.float32], ids=["real", "complex", "single"])
@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_gradients_are_finite_also_where_nothing_was_measured_and_parameters_are_real(
    case: EstimatorCase, dtype: torch.dtype
) -> None:
    model = _model(case, dtype)
    batch = case.sample(dtype)
    batch = replace(batch, y=torch.cat([torch.zeros_like(batch.y[:1]), batch.y[1:]]))
    parameters = list(model.parameters())
    if not parameters:
        return
    model.training_loss(batch, generator=torch.Generator()).backward()
    for name, parameter in model.named_parameters():
        assert not parameter.is_complex(), name
        assert parameter.grad is not None, name
        assert bool(torch.isfinite(parameter.grad).all()), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64], ids=["real", "complex"])
@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_the_configuration_and_the_state_give_an_equal_model(case: EstimatorCase, dtype: torch.dtype) -> None:
    model = _model(case, dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    again = type(model).from_configuration(model.configuration())
    again.load_state_dict(model.state_dict())
    assert again.configuration() == model.configuration()
    batch = case.sample(dtype)
    one, two = (each.estimate(batch.y, batch.phi, batch.noise_var).signal for each in (model, again))
    assert torch.equal(one, two)


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_a_phi_of_another_shape_or_a_signal_of_another_dtype_is_refused(case: EstimatorCase) -> None:
    model = _model(case, torch.float64)
    with pytest.raises(ValueError, match=r"y must have the model's dtype torch.float64, got torch.float32"):
        model.estimate(torch.ones(2, M), torch.ones(M, N), 0.0)
    for shape in ((M + 1, N), (M, N + 1)):
        y, phi = torch.ones(2, shape[0], dtype=torch.float64), torch.ones(shape, dtype=torch.float64)
        try:
            result = f"a signal {[*model.estimate(y, phi, 0.0).signal.shape]}"
        except ValueError as error:
            result = str(error)
        assert result.startswith("phi must have") or result == f"a signal {[2, shape[1]]}", f"{shape}: {result}"
