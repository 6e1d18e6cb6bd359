"""tensorflow keras-fit: Keras's own `fit` under MirroredStrategy, as most people train, to measure what it costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dpcompare.backends.base import Handle
from dpcompare.backends.description import Description
from dpcompare.backends.keras.fit import CurrentBatch, Fit, StepsMade, adam, slots_of, switches
from dpcompare.backends.tensorflow.backend import TensorFlowBackend
from dpcompare.config.optimizers import ADAM_BETAS
from dpcompare.data.batches import DeviceBatch
from dpcompare.models.state import TrainingState


class KerasFit(TensorFlowBackend):
    """Keras trains the variables of the model that the loop evaluates."""

    def make_strategy(self) -> tf.distribute.Strategy:
        return tf.distribute.MirroredStrategy(self.local_devices())

    def setup(self) -> None:
        super().setup()
        with self.strategy.scope():
            self._loss = _WeightedLoss(self._dtype, self.row_losses)
            # The formula of our optimizer.py, in a dozen operations per variable instead of one.
            self._adam = adam(self.model)
            if self.workload.precision == "float64":  # a Python float becomes float32 where Keras casts it
                self._adam.beta_1, self._adam.beta_2 = (tf.constant(beta, self._dtype) for beta in ADAM_BETAS)
            self.model.compile(optimizer=self._adam, loss=self._loss, jit_compile=False)
        self._steps = StepsMade(self._adam)
        self.optimizer.slots = {
            name: [variable.value for variable in variables] for name, variables in slots_of(self._adam).items()
        }
        self._images_computed = self._loss.images
        self._fit = Fit(self.model, _DistributedBatch())

    @property
    def step_functions(self) -> Sequence[tf.types.experimental.PolymorphicFunction]:
        """None: Keras keeps its function to itself."""
        return ()

    def train_step(self, batches: Sequence[DeviceBatch], learning_rate: float) -> Handle:
        self._set_training_mode(training=True)
        self._step += 1
        (batch,) = batches
        self._adam.learning_rate.assign(np.float64(learning_rate))  # a Python float would be rounded to float32
        self._loss.divide_by(batch.global_count)
        images = batch.images if batch.drop_masks is None else (batch.images, batch.drop_masks)
        self._fit.step((images, batch.labels, batch.weights))
        return self._loss.total.read_value()

    def load_state(self, state: TrainingState) -> None:
        super().load_state(state)
        self._steps.load(state.step)

    def _optimizer_steps(self) -> int:
        return self._steps.count

    def describe(self) -> Description:
        description = super().describe().with_settings(loop="Keras fit", optimizer_kernels="Keras")
        description = replace(description, switches=(*description.switches, *switches(self.model, jit_compile=False)))
        if any(isinstance(layer, keras.layers.Embedding) for layer in self.model.layers):
            # TensorFlow has a gradient of an embedding for each lookup. Keras squares each, torch and JAX their sum.
            optimizer = description.settings["optimizer"] | {"embedding gradients": "squared per lookup"}
            return description.with_settings(optimizer=optimizer)
        return description

    def teardown(self) -> None:
        self._fit.end()


class _DistributedBatch(CurrentBatch, tf.distribute.DistributedDataset):
    """What Keras takes for a distributed dataset, which it leaves as it is."""

    def get_tf_dataset(self) -> tf.distribute.DistributedDataset:
        return self


class _WeightedLoss(keras.losses.Loss):
    """The weighted sum of the losses of all rows, kept for the loop: Keras itself reports a mean over an epoch."""

    def __init__(self, dtype: tf.DType, row_losses: Callable[..., tf.Tensor]) -> None:
        super().__init__()
        self._row_losses = row_losses
        self.total = tf.Variable(
            tf.zeros((), dtype),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        self.images = tf.Variable(
            np.int64(0),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        self._divisor = tf.Variable(tf.zeros((), dtype), trainable=False)
        self._count = 0

    def divide_by(self, global_count: int) -> None:
        """Have the next steps minimise the mean over so many samples."""
        if global_count != self._count:  # an epoch's last batch has others
            self._count = global_count
            self._divisor.assign(global_count)

    def __call__(self, labels: Any, logits: Any, sample_weight: Any = None) -> Any:
        row_labels = tf.cast(tf.reshape(labels, [-1]), tf.int32)
        losses = self._row_losses(tf.cast(logits, self.total.dtype), row_labels, training=True)
        weights = tf.reshape(sample_weight, [-1])
        total = tf.reduce_sum(losses * weights)
        self.total.assign(total)
        if not tf.distribute.in_cross_replica_context():  # where Keras builds the model and trains nothing
            self.images.assign_add(tf.math.count_nonzero(weights))
        return total / self._divisor
