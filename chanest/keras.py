"""Our estimators as a Keras layer on TensorFlow: `h_hat, variance = EstimatorLayer(estimator)(y, beams, noise_var)`.

For pipelines that are still on TensorFlow, such as Sionna 1. Needs the extra `tensorflow`. Tensors are handed over by DLPack,
without a copy, in eager mode and inside `tf.function`; the estimate is PyTorch's, so that no gradient passes through it.
"""

from __future__ import annotations

from typing import Any

import torch

from chanest.frontend import BeamformingMap
from vlista_core.estimate import Estimator, Measurement, as_estimator, called, estimated

try:
    import keras
    import tensorflow as tf
except ImportError as missing:
    raise ImportError("chanest.keras needs TensorFlow: pip install 'vlista[tensorflow]'") from missing

_ALIGNED = 64
"""Bytes: TensorFlow takes over memory that begins at a multiple."""
_NO_GRADIENT = (
    "EstimatorLayer has no gradient: the estimate is computed by PyTorch, outside TensorFlow's graph; "
    "train in PyTorch, or put tf.stop_gradient around the layer's outputs"
)


class EstimatorLayer(keras.layers.Layer):  # type: ignore[misc]
    """ĥ and the variance of its errors, from tensors of TensorFlow.

    `layer(y, beams, noise_var)`: y [batch, m] as received, pilot by pilot; beams f_t as columns, [batch, N_t, T]; noise_var
    E|n|² per antenna, [] or [batch]. The receiver is digital, with m / T antennas, unless combiners W_t [batch, T, N_r, N_RF]
    follow as a fourth argument. Returns ĥ [batch, n], complex as y is, and the variance [batch, n], real.

    err_var: a number that takes the place of the estimator's own variance; needed where it has none.
    """

    def __init__(self, estimator: Estimator, *, err_var: float | None = None, **kwargs: Any) -> None:
        super().__init__(trainable=False, autocast=False, **kwargs)
        self._estimator = as_estimator(estimator)
        self._err_var = err_var

    def call(self, y: Any, beams: Any, noise_var: Any, combiners: Any = None) -> tuple[Any, Any]:
        """See the class."""
        y, beams = tf.convert_to_tensor(y), tf.convert_to_tensor(beams)
        real = tf.math.real(y[:0]).dtype
        noise_var = tf.broadcast_to(tf.cast(noise_var, real), tf.shape(y)[:1])
        given = [y, beams, noise_var, *([] if combiners is None else [tf.convert_to_tensor(combiners)])]

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def told(*tensors: Any) -> tuple[Any, Any]:
            if tf.executing_eagerly():
                found = self._estimated(*tensors)
            else:
                found = tf.py_function(self._estimated, tensors, (y.dtype, real))
            return tuple(found), _refused

        h_hat, variance = told(*given)
        length = self._length(given)
        for each in (h_hat, variance):
            each.set_shape((y.shape[0], length))
        return h_hat, variance

    def get_config(self) -> dict[str, Any]:
        """Refused: Keras cannot write an estimator."""
        raise ValueError(
            "EstimatorLayer cannot be saved with a model: its estimator is PyTorch's; make the layer again"
        )

    def _estimated(self, y: Any, beams: Any, noise_var: Any, combiners: Any = None) -> tuple[Any, Any]:
        """The same of tensors that have values."""
        received, sent, noise = (to_torch(each) for each in (y, beams, noise_var))
        weights = None if combiners is None else to_torch(combiners)
        if received.ndim != 2 or sent.ndim != 3 or received.shape[1] % sent.shape[2]:
            raise ValueError(
                f"y must be [batch, m] and beams [batch, N_t, T] with m a multiple of T, got {[*received.shape]} and "
                f"{[*sent.shape]}"
            )
        antennas = received.shape[1] // sent.shape[2] if weights is None else 0
        phi = BeamformingMap.of(sent, weights, antennas=antennas, whiten=False)
        measured = Measurement.checked(phi.whitened_output(received), phi.whitened(), noise)
        found = estimated(called(self._estimator), self._estimator, measured)
        variance = found.variance
        if self._err_var is not None:
            variance = torch.full_like(found.signal.real, self._err_var)
        if variance is None:
            name = called(self._estimator)
            raise ValueError(f"{name} knows no variance of its errors: give EstimatorLayer a number for err_var")
        return to_tensorflow(found.signal), to_tensorflow(variance)

    @staticmethod
    def _length(given: list[Any]) -> int | None:
        """n, where the shapes of the inputs tell it."""
        y, beams, _, *combiners = given
        pilots, antennas = beams.shape[2], combiners[0].shape[2] if combiners else None
        if not combiners and None not in (y.shape[1], pilots):
            antennas = y.shape[1] // pilots
        return None if None in (beams.shape[1], antennas) else beams.shape[1] * antennas


def to_torch(tensor: Any) -> torch.Tensor:
    """A tensor of TensorFlow that has values as one of PyTorch, in the same memory."""
    return torch.utils.dlpack.from_dlpack(tf.experimental.dlpack.to_dlpack(tensor))


def to_tensorflow(tensor: torch.Tensor) -> Any:
    """A tensor of PyTorch as one of TensorFlow, in the same memory where that is laid out as TensorFlow has it."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if plain.data_ptr() % _ALIGNED:
        plain = plain.clone()
    return tf.experimental.dlpack.from_dlpack(plain.__dlpack__())


def _refused(*gradients: Any, **kwargs: Any) -> Any:
    raise ValueError(_NO_GRADIENT)
