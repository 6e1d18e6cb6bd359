"""A Keras model as a custom model in JAX: a pure function of its tensors, by Keras's `stateless_call`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import jax
import keras
import numpy as np
from jax import lax

from dpcompare.backends.keras.function import Call, Drop, KerasFunction
from dpcompare.models.layers.in_jax import Tensors


class KerasModule:
    """The pair `init` and `apply` of a model."""

    def __init__(self, model: keras.Model, name: str) -> None:
        """Read a model, with the arguments and errors of `KerasFunction`."""
        self._function = KerasFunction(model, name)
        self._initial = self._function.initial()

    def free(self) -> None:
        """Delete the values of the model's own variables, which would count as memory of the training."""
        for variable in self._function.variables:
            variable.value.delete()

    def init(self) -> Mapping[str, np.ndarray]:
        """The model's tensors, as torch has them, in the order of its layers."""
        return self._initial

    def apply(
        self, tensors: Tensors, images: jax.Array, *, training: bool, axis_name: str | None, drop: Drop | None
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The logits of images, and the features of layers, in training new running statistics too."""
        call = Call(
            drop=drop, mean_over_replicas=None if axis_name is None else partial(lax.pmean, axis_name=axis_name)
        )
        computed = self._function(tensors, images, call, training=training, with_features=True)
        return computed.logits, {**computed.statistics, **computed.features}
