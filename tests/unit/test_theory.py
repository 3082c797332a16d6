"""The proposition: its definitions against double loops, its two inequalities on random instances, and their limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import vlista_core.theory as theory
from vlista_core.linops import DenseMap, LinearMap
from vlista_core.models.layer import Layer
from vlista_core.problems import Batch
from vlista_core.prox import soft_threshold
from vlista_core.theory import check_layers, check_proposition, coherence, deviation, mismatch_coherence

DTYPES = [torch.float64, torch.complex128]


def _normal(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES, ids=["real", "complex"])
@pytest.mark.parametrize("block_bytes", [1, 64 * 2**20], ids=["one column at a time", "at once"])
def test_definitions_agree_with_double_loops(
    dtype: torch.dtype, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(theory, "_BLOCK_BYTES", block_bytes)
    phi, psi = _normal(3, 5, 7, dtype=dtype, seed=0), _normal(7, 9, dtype=dtype, seed=1)
    truth = psi + 0.1 * _normal(7, 9, dtype=dtype, seed=2)
    step = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    mu, mu_2, delta = coherence(phi, psi), mismatch_coherence(phi, psi, truth), deviation(step, phi, psi)
    assert mu.shape == mu_2.shape == delta.shape == (3,)
    for k in range(3):
        a, d = phi[k] @ psi, phi[k] @ (psi - truth)
        pairs = [(i, j) for i in range(9) for j in range(9)]
        assert float(mu[k]) == pytest.approx(
            max(abs(complex(torch.vdot(a[:, i], a[:, j]))) for i, j in pairs if i != j)
        )
        assert float(mu_2[k]) == pytest.approx(max(abs(complex(torch.vdot(a[:, i], d[:, j]))) for i, j in pairs))
        norms = [float((a[:, i].abs() ** 2).sum()) for i in range(9)]
        assert float(delta[k]) == pytest.approx(max(abs(1 - float(step[k]) * norm) for norm in norms))


def test_shared_maps_give_one_value_and_a_truth_for_each_sample_one_each() -> None:
    phi, psi = _normal(5, 7, dtype=torch.float64, seed=0), _normal(7, 9, dtype=torch.float64, seed=1)
    truth = psi + 0.1 * _normal(3, 7, 9, dtype=torch.float64, seed=2)
    assert coherence(phi, psi).shape == deviation(0.1, phi, psi).shape == (1,)
    each = torch.cat([mismatch_coherence(phi, psi, one) for one in truth])
    torch.testing.assert_close(mismatch_coherence(phi, psi, truth), each)
    with pytest.raises(ValueError, match=r"truth must have the shape \(7, 9\) of psi, got \(7, 8\)"):
        mismatch_coherence(phi, psi, truth[0, :, :8])


def test_unit_columns_and_step_one_have_no_deviation() -> None:
    phi = torch.nn.functional.normalize(_normal(4, 6, 8, dtype=torch.float64, seed=0), dim=1)
    assert float(deviation(1.0, phi, torch.eye(8, dtype=torch.float64)).max()) < 1e-15


class _DLISTA:
    """DLISTA with one dictionary and step, whose thresholds are `factor` times the least that the proposition admits."""

    def __init__(self, psi: LinearMap, truth: LinearMap, truth_code: Tensor, step: float, factor: float) -> None:
        self.psi, self.truth, self.truth_code, self.step, self.factor = psi, truth, truth_code, step, factor

    def unroll(self, y: Tensor, phi: LinearMap, noise_var: Tensor) -> list[Layer]:
        a = phi @ self.psi
        mu, mu_2 = coherence(phi, self.psi), mismatch_coherence(phi, self.psi, self.truth)
        truth_l1 = self.truth_code.abs().sum(1)
        step = torch.full_like(truth_l1, self.step)
        code = torch.zeros_like(self.truth_code)
        layers = []
        for _ in range(4):
            error_l1 = (code - self.truth_code).abs().sum(1)
            threshold = self.factor * theory.threshold_bound(step, mu, mu_2, error_l1, truth_l1)
            descent = code + step[:, None] * a.adjoint(y - a.apply(code))
            code = soft_threshold(descent, threshold[:, None])
            layers.append(Layer(code, step, threshold, self.psi))
        return layers


def _instances(
    dtype: torch.dtype,
    mismatch: float,
    factor: float,
    *,
    count: int = 250,
    m: int = 150,
    n: int = 40,
    step: float = 0.9,
) -> tuple[_DLISTA, Batch, LinearMap]:
    """Random Φ with unit columns, a random orthonormal Ψ_o, codes of two non-zeros, and a Ψ_t off by `mismatch`."""
    phi = torch.nn.functional.normalize(_normal(count, m, n, dtype=dtype, seed=3), dim=1)
    truth = torch.linalg.qr(_normal(n, n, dtype=dtype, seed=4)).Q
    psi = truth + mismatch * _normal(n, n, dtype=dtype, seed=5) / n**0.5
    code = torch.zeros(count, n, dtype=dtype)
    position = torch.rand(count, n, generator=torch.Generator().manual_seed(6)).argsort(1)[:, :2]
    code.scatter_(1, position, _normal(count, 2, dtype=dtype, seed=7))
    signal = code @ truth.mT
    y = torch.einsum("kmn,kn->km", phi, signal)
    batch = Batch(signal, y, DenseMap(phi), torch.zeros(count, dtype=torch.float64), code)
    return _DLISTA(DenseMap(psi), DenseMap(truth), code, step, factor), batch, DenseMap(truth)


@pytest.mark.parametrize("dtype", DTYPES, ids=["real", "complex"])
@pytest.mark.parametrize("mismatch", [0.0, 0.02], ids=["known dictionary", "perturbed dictionary"])
def test_both_inequalities_hold_on_250_instances_each_that_meet_the_conditions(
    dtype: torch.dtype, mismatch: float
) -> None:
    """Four cases of 250 make 1,000 instances. The codes found are not empty, or no false positives would say nothing."""
    model, batch, truth = _instances(dtype, mismatch, 1.0 + 1e-12)
    checks = check_proposition(model, batch, truth)
    assert len(checks) == 4
    assert bool((mismatch_coherence(batch.phi, model.psi, truth) > 0).all()) == (mismatch > 0)
    for check in checks:
        assert bool(check.condition.all())
        assert bool(check.assumed.all())
        assert int(check.false_positives.sum()) == 0
        assert bool((check.error <= check.bound * (1 + 1e-12)).all())
    found = model.unroll(batch.y, batch.phi, batch.noise_var)[-1].code != 0
    assert float(found.sum(1).double().mean()) > 1.8
    assert float((checks[-1].error / model.truth_code.abs().sum(1)).mean()) < 0.3


def test_thresholds_below_the_bound_do_give_false_positives() -> None:
    model, batch, truth = _instances(torch.float64, 0.02, 0.2)
    checks = check_proposition(model, batch, truth)
    assert not bool(checks[0].condition.any())
    assert not bool(checks[-1].assumed.any())
    assert float((checks[0].false_positives > 0).double().mean()) > 0.9


def test_one_layer_that_breaks_the_condition_ends_the_assumption_for_all_that_follow() -> None:
    model, batch, truth = _instances(torch.float64, 0.0, 1.5)
    layers = model.unroll(batch.y, batch.phi, batch.noise_var)
    layers[1] = replace(layers[1], threshold=torch.tensor(0.0, dtype=torch.float64))
    checks = check_layers(layers, batch.phi, model.truth_code, truth)
    assert [bool(check.assumed.all()) for check in checks] == [True, False, False, False]
    assert bool(checks[2].condition.all())


def test_the_canonical_dictionary_needs_no_code() -> None:
    model, batch, _ = _instances(torch.float64, 0.0, 1.01)
    identity = DenseMap(torch.eye(40, dtype=torch.float64))
    canonical = _DLISTA(identity, identity, model.truth_code, 0.9, 1.01)
    seen = replace(batch, signal=model.truth_code, y=batch.phi.apply(model.truth_code), code=None)
    for check in check_proposition(canonical, seen):
        assert int(check.false_positives.sum()) == 0
        assert bool((check.error <= check.bound).all())


def test_what_the_proposition_does_not_cover_is_refused() -> None:
    model, batch, truth = _instances(torch.float64, 0.0, 1.0)
    with pytest.raises(ValueError, match=r"batch must be noiseless.*got noise_var up to 0.1"):
        check_proposition(model, replace(batch, noise_var=torch.full_like(batch.noise_var, 0.1)), truth)
    with pytest.raises(ValueError, match=r"batch must have a code"):
        check_proposition(model, replace(batch, code=None), truth)
    with pytest.raises(ValueError, match=r"truth_code must have shape \[batch, 40\], got \[250, 39\]"):
        check_layers([], batch.phi, model.truth_code[:, 1:], truth)
