"""The Keras layer: the numbers of the estimator, eagerly and in a graph; memory that is shared; words for what cannot work.

In an environment of its own: `make test-tensorflow`. The main suite leaves this folder out.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

import chanest
from chanest.export import as_received
from chanest.frontend import BeamformingMap
from chanest.keras import EstimatorLayer, to_tensorflow, to_torch
from chanest.problem import ChannelBatch
from vlista_core.solvers import OMP


@pytest.fixture(scope="module")
def problem() -> chanest.ChannelProblem:
    return chanest.ChannelProblem(chanest.load_scenario("cdl_c_upa64x4"))


@pytest.fixture(scope="module")
def batch(problem: chanest.ChannelProblem) -> ChannelBatch:
    return problem.sample(5, seed=3, snr_db=10.0)


def _front_end(batch: ChannelBatch) -> BeamformingMap:
    assert isinstance(batch.phi, BeamformingMap)
    return batch.phi


def _inputs(batch: ChannelBatch) -> tuple[tf.Tensor, ...]:
    return tuple(tf.constant(each.numpy()) for each in (batch.y, _front_end(batch).transmit, batch.noise_var))


@pytest.mark.parametrize("name", ["gated-lmmse", "lmmse"])
def test_the_numbers_are_those_of_the_estimator(
    name: str, problem: chanest.ChannelProblem, batch: ChannelBatch
) -> None:
    estimator = chanest.get_estimator(name, problem)
    wanted = estimator.estimate(batch.y, batch.phi, batch.noise_var)
    assert wanted.variance is not None
    layer = EstimatorLayer(estimator)
    h_hat, variance = layer(*_inputs(batch))
    assert (h_hat.dtype, variance.dtype) == (tf.complex64, tf.float32)
    np.testing.assert_allclose(h_hat.numpy(), wanted.signal.numpy(), atol=1e-6)
    np.testing.assert_allclose(variance.numpy(), wanted.variance.numpy(), rtol=1e-5)


def test_inside_a_function_of_any_batch_size(problem: chanest.ChannelProblem, batch: ChannelBatch) -> None:
    layer = EstimatorLayer(chanest.get_estimator("gated-lmmse", problem))
    traced: list[list[int | None]] = []
    shapes = [
        tf.TensorSpec([None, 96], tf.complex64), tf.TensorSpec([None, 64, 24], tf.complex64), tf.TensorSpec([None], tf.float32)
    ]  # fmt: skip

    @tf.function(input_signature=shapes)  # type: ignore[untyped-decorator]
    def receiver(y: tf.Tensor, beams: tf.Tensor, noise_var: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        h_hat, variance = layer(y, beams, noise_var)
        traced.append(h_hat.shape.as_list())
        return h_hat, tf.reduce_mean(variance, axis=1)

    inputs = _inputs(batch)
    eager, spread = layer(*inputs)
    for count in (5, 1):
        h_hat, mean = receiver(*(each[:count] for each in inputs))
        assert h_hat.shape == (count, 256)
        np.testing.assert_allclose(h_hat.numpy(), eager.numpy()[:count], atol=1e-4)
        np.testing.assert_allclose(mean.numpy(), spread.numpy()[:count].mean(1), rtol=1e-3)
    assert traced == [[None, 256]], "one graph serves every batch, and knows how long h is"


def test_a_receiver_that_combines_gives_y_as_received() -> None:
    problem = chanest.ChannelProblem(chanest.load_scenario("hybrid_64x16"))
    batch = problem.sample(3, seed=4, snr_db=10.0)
    estimator = chanest.get_estimator("gated-lmmse", problem)
    assert _front_end(batch).whiten
    arguments = (each.resolve_conj() for each in as_received(batch.y, batch.phi, batch.noise_var))
    h_hat, _ = EstimatorLayer(estimator)(*(tf.constant(each.numpy()) for each in arguments))
    wanted = estimator.estimate(batch.y, batch.phi, batch.noise_var).signal
    np.testing.assert_allclose(h_hat.numpy(), wanted.numpy(), atol=1e-3)


def test_memory_is_handed_over_without_a_copy() -> None:
    given = tf.complex(tf.random.normal([4, 3]), tf.random.normal([4, 3]))
    to_torch(given)[2, 1] = 7.0
    assert given.numpy()[2, 1] == 7.0
    back = torch.zeros(4, 3, dtype=torch.complex64)
    seen = to_tensorflow(back)
    back[1, 2] = torch.tensor(5.0j)
    assert seen.numpy()[1, 2] == 5.0j


@pytest.mark.parametrize(
    "odd", [lambda x: x[1:], lambda x: x.mT, lambda x: x.conj()], ids=["offset", "strided", "conj"]
)
def test_what_is_laid_out_otherwise_comes_over_right(odd: Callable[[torch.Tensor], torch.Tensor]) -> None:
    value = torch.randn(5, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(to_tensorflow(odd(value)).numpy(), odd(value).resolve_conj().numpy())


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "tf.function"])
def test_a_gradient_through_the_layer_is_refused_in_one_sentence(
    graph: bool, problem: chanest.ChannelProblem, batch: ChannelBatch
) -> None:
    layer = EstimatorLayer(chanest.get_estimator("lmmse", problem))
    y, beams, noise_var = _inputs(batch)

    def gradient() -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(y)
            h_hat, _ = layer(y, beams, noise_var)
            loss = tf.reduce_sum(tf.abs(h_hat) ** 2)
        return tape.gradient(loss, y)

    with pytest.raises(ValueError, match=r"EstimatorLayer has no gradient: .* train in PyTorch"):
        (tf.function(gradient) if graph else gradient)()


def test_gradients_beside_the_layer_pass(problem: chanest.ChannelProblem, batch: ChannelBatch) -> None:
    layer = EstimatorLayer(chanest.get_estimator("lmmse", problem))
    scale = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        h_hat, _ = layer(*_inputs(batch))
        loss = scale * tf.reduce_sum(tf.abs(tf.stop_gradient(h_hat)) ** 2)
    power = float(tf.reduce_sum(tf.abs(h_hat) ** 2))
    assert float(tape.gradient(loss, scale)) == pytest.approx(power, rel=1e-5)


def test_a_model_of_keras_holds_it(problem: chanest.ChannelProblem, batch: ChannelBatch) -> None:
    y, beams = keras.Input((96,), dtype="complex64"), keras.Input((64, 24), dtype="complex64")
    noise_var = keras.Input((), dtype="float32")
    model = keras.Model(
        [y, beams, noise_var], EstimatorLayer(chanest.get_estimator("lmmse", problem))(y, beams, noise_var)
    )
    h_hat, variance = model(list(_inputs(batch)))
    assert h_hat.shape == variance.shape == (5, 256)
    assert not model.trainable_variables


def test_a_number_stands_in_for_a_variance_that_is_not_known(batch: ChannelBatch) -> None:
    inputs, solver = _inputs(batch), OMP(n_nonzero=4)
    with pytest.raises(
        ValueError, match="OMP knows no variance of its errors: give EstimatorLayer a number for err_var"
    ):
        EstimatorLayer(solver)(*inputs)
    _, variance = EstimatorLayer(solver, err_var=0.25)(*inputs)
    assert np.all(variance.numpy() == 0.25)


def test_wrong_shapes_are_named(problem: chanest.ChannelProblem, batch: ChannelBatch) -> None:
    y, beams, noise_var = _inputs(batch)
    with pytest.raises(ValueError, match=r"m a multiple of T, got \[5, 95\] and \[5, 64, 24\]"):
        EstimatorLayer(chanest.get_estimator("lmmse", problem))(y[:, :95], beams, noise_var)


def test_an_estimator_is_needed() -> None:
    with pytest.raises(ValueError, match="estimator must be an object with estimate"):
        EstimatorLayer("gated-lmmse")  # type: ignore[arg-type]
