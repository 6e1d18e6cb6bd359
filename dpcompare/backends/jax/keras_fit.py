"""jax keras-fit: Keras's own `fit` under keras.distribution.DataParallel, to measure what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import keras
import numpy as np
import numpy.typing as npt

from dpcompare.backends.base import Handle
from dpcompare.backends.description import Description
from dpcompare.backends.jax.arrays import shard
from dpcompare.backends.jax.jit import Jit
from dpcompare.backends.jax.keras_module import KerasModule
from dpcompare.backends.jax.model import Model
from dpcompare.backends.jax.train_state import TrainState
from dpcompare.backends.keras.build import build
from dpcompare.backends.keras.fit import LOSS_SUM, CurrentBatch, Fit, FittedModel
from dpcompare.data.batches import DeviceBatch
from dpcompare.models.state import TrainingState
from dpcompare.system.type_names import Array


class KerasFit(Jit):
    """Keras trains variables of its own, on the devices of one process.

    What the loop evaluates, saves and counts is a training state, as in the other modes, that is taken from them when
    it is asked for, and given to them where it was changed.
    """

    _state: TrainState
    _is_behind = False
    """Whether Keras has made steps since the training state was taken."""
    _is_ahead = False
    """Whether the training state was changed since Keras got it."""

    @property
    def _train_state(self) -> TrainState:  # type: ignore[override]  # an attribute elsewhere
        if self._is_behind:
            self._take_from_keras()
        return self._state

    @_train_state.setter
    def _train_state(self, state: TrainState) -> None:
        self._state = state
        self._is_ahead = True

    def build_model(self) -> Model:
        # Keras would look one batch ahead where it does not distribute them.
        devices = [f"{device.platform}:{device.id}" for device in self.mesh.devices.flat]
        self._distribution = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
        names = self.inputs.layers.get("jax", {})
        self._keras = build(self.workload, self.inputs.num_classes, "jax", names, self._scope)
        module = KerasModule(self._keras, self.workload.model)

        def logits(
            tensors: Any, images: jax.Array, drop_masks: jax.Array | None, *, training: bool, axis_name: str | None
        ) -> tuple[jax.Array, dict[str, jax.Array]]:
            return module.apply(tensors, images, training=training, axis_name=axis_name, drop=None)

        return Model(init=module.init, apply=logits)

    def _scope(self) -> AbstractContextManager[Any]:
        """Keras keeps its distribution for each thread."""
        scope: AbstractContextManager[Any] = self._distribution.scope()
        return scope

    def setup(self) -> None:
        super().setup()
        with self._scope():
            self._fitted = FittedModel(self._keras, self.row_losses, jit_compile=True)
        self._rate_of_keras = self._fitted.adam.learning_rate
        self._rate: float | None = None
        self._place_of_rate = next(
            place for place, variable in enumerate(self._fitted.adam.variables) if variable is self._rate_of_keras
        )
        self._over_count = jax.jit(lambda weights, count: weights / count)
        self._fit = Fit(self._keras, CurrentBatch(), self._scope, self._place_on_mesh)
        self._last: Handle = None

    @property
    def names_of_steps(self) -> set[str]:
        return {"train_step"}

    def train_step(self, batches: Sequence[DeviceBatch], learning_rate: float) -> Handle:
        self._set_training_mode(training=True)
        if self._is_ahead:
            self._give_to_keras()
        self._step += 1
        (batch,) = batches
        self._set_learning_rate(learning_rate)
        weights = self._over_count(batch.weights, np.asarray(batch.global_count, self._dtype))
        self._last = self._fit.step((batch.images, batch.labels, weights))[LOSS_SUM]
        self._is_behind = True
        return self._last

    def _set_learning_rate(self, learning_rate: float) -> None:
        if learning_rate == self._rate:
            return
        self._rate = learning_rate
        if getattr(self._keras, "_jax_state", None) and not self._keras._jax_state_synced:
            # Between two steps of `fit` its variables have no values; to give it all of them back takes too long.
            variables = self._keras._jax_state["optimizer_variables"]
            old = variables[self._place_of_rate]
            variables[self._place_of_rate] = jax.device_put(np.asarray(learning_rate, old.dtype), old.sharding)
        else:
            rate = np.asarray(learning_rate, self._dtype)
            self._rate_of_keras.assign(jax.device_put(rate, _sharding(self._rate_of_keras)))

    def _take_from_keras(self) -> None:
        self._keras.jax_state_sync()
        self._is_behind = False
        found = self._fitted.state()
        taken = self._state.with_state(found, self.mesh, self.optimizer, self._dtype, self.of_step)
        self._state = taken._replace(
            optimizer_steps=shard(self.mesh, np.full(self.num_replicas, self._fitted.steps.count, np.int32)),
            # Keras counts those of all devices together.
            images_computed=shard(
                self.mesh, np.array([self._fitted.images_computed, *[0] * (self.num_replicas - 1)], np.int32)
            ),
        )

    def _give_to_keras(self) -> None:
        state = self._state
        self._keras.jax_state_sync()
        with self._scope():
            self._fitted.load(
                TrainingState(model=state.model_on_host(), optimizer=state.slots_on_host(), step=self._step),
                self.workload.model,
            )
        self._is_ahead = False
        self._place_on_mesh()

    def _place_on_mesh(self) -> None:
        """Have Keras's variables where a step leaves them: those on a single device would make it compile again."""
        for variable in (*self._keras.variables, *self._fitted.adam.variables, *self._keras.metrics_variables):
            variable.assign(jax.device_put(variable.value, _sharding(variable)))

    def synchronize(self, *, drain: bool = False) -> None:
        jax.block_until_ready(self._last if self._is_behind else self._state)

    def read(self, handles: Sequence[jax.Array]) -> npt.NDArray[np.float64]:
        if handles and handles[0].ndim == 0:  # what Keras logs, of all devices
            return np.array([np.asarray(handle) for handle in handles], np.float64)
        return super().read(handles)

    def tensors_of_replicas(self) -> Iterator[tuple[str, Sequence[Array]]]:
        if self._is_ahead:  # as before the first step
            self._give_to_keras()
        self._keras.jax_state_sync()
        for name, mapped, variable in self._fitted.trained():
            copies = variable.value.addressable_shards
            yield name, [np.ascontiguousarray(mapped.layout.to_neutral(np.asarray(copy.data))) for copy in copies]

    def describe(self) -> Description:
        return self._fitted.described(super().describe()).with_settings(convolutions="kernel", donation="on")

    def teardown(self) -> None:
        self._fit.end()
        super().teardown()


def _sharding(variable: keras.Variable) -> jax.sharding.Sharding:
    """Where Keras's distribution places a variable."""
    layout = variable._layout  # in older versions of Keras the sharding itself
    placed: jax.sharding.Sharding = getattr(layout, "backend_layout", layout)
    return placed
