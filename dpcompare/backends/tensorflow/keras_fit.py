"""tensorflow keras-fit: Keras's own `fit` under MirroredStrategy, as most people train, to measure what it costs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from dpcompare.backends.base import Handle
from dpcompare.backends.description import Description
from dpcompare.backends.tensorflow.backend import TensorFlowBackend
from dpcompare.config.optimizers import ADAM_BETAS, ADAM_EPSILON
from dpcompare.data.batches import DeviceBatch
from dpcompare.models.state import TrainingState


class KerasFit(TensorFlowBackend):
    """`fit` runs in a separate thread; each step the loop gives it a batch, lets it continue, and waits for it."""

    def make_strategy(self) -> tf.distribute.Strategy:
        return tf.distribute.MirroredStrategy(self.local_devices())

    def setup(self) -> None:
        super().setup()
        with self.strategy.scope():
            self._loss = _WeightedLoss(self._dtype, self.row_losses)
            # The formula of our optimizer.py, in a dozen operations per variable instead of one.
            self._adam = keras.optimizers.Adam(beta_1=ADAM_BETAS[0], beta_2=ADAM_BETAS[1], epsilon=ADAM_EPSILON)
            self._adam.build(self.model.trainable_variables)
            self.model.compile(optimizer=self._adam, loss=self._loss, jit_compile=False)
        self.optimizer.slots = {
            name: [variable.value for variable in variables]
            for name, variables in (("exp_avg", self._adam._momentums), ("exp_avg_sq", self._adam._velocities))
        }
        self._images_computed = self._loss.images
        self._steps_before, self._steps_loaded = 0, 0
        self._turns = _StepHandshake()
        self._given = _CurrentBatch()
        self._fitting: threading.Thread | None = None

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
        self._given.batch = (images, batch.labels, batch.weights)
        if self._fitting is None:
            self._fitting = threading.Thread(target=self._fit, name="fit", daemon=True)
            self._fitting.start()
        else:
            self._turns.proceed()
        self._turns.wait()
        return self._loss.total.read_value()

    def _fit(self) -> None:
        """Keras's `fit` on the batches that it is given."""
        try:
            self.model.fit(self._given, epochs=1, verbose=0, callbacks=[self._turns])
            # Nothing waits for it if fit was asked to end.
            self._turns.fail(RuntimeError("Keras ended its fit by itself; is KERAS_MAX_STEPS_PER_EPOCH set?"))
        except Exception as error:  # raised where the step is waited for
            self._turns.fail(error)

    def load_state(self, state: TrainingState) -> None:
        self._steps_before = self._optimizer_steps()
        super().load_state(state)
        self._adam.iterations.assign(state.step)
        self._steps_loaded = state.step

    def _optimizer_steps(self) -> int:
        # Keras counts from the state that was loaded last.
        return self._steps_before + int(self._adam.iterations.numpy()) - self._steps_loaded

    def describe(self) -> Description:
        description = super().describe().with_settings(loop="Keras fit", optimizer_kernels="Keras")
        if self.workload.precision == "float64":
            optimizer = description.settings["optimizer"] | {"constants": "rounded to float32"}
            return description.with_settings(optimizer=optimizer)
        return description

    def teardown(self) -> None:
        if self._fitting is not None:
            self._turns.end()
            self._fitting.join()


class _CurrentBatch(DataAdapter, tf.distribute.DistributedDataset):
    """What `fit` trains on: the batch of the present step, which is on the replicas' devices already.

    Of what `fit` takes as its data only such an adapter is left as it is. Everything else becomes a tf.data.Dataset,
    whose batches are on the host, and which Keras splits and copies within the step that is timed.
    """

    batch: Any = None
    """Images, with their drop masks if there are any; labels; weights."""

    def get_tf_dataset(self) -> tf.distribute.DistributedDataset:
        return self

    def __iter__(self) -> Iterator[Any]:
        # Keras takes the first batch twice: once to look at its shapes.
        while True:
            yield self.batch

    @property
    def num_batches(self) -> None:
        """Unknown to Keras: `fit` continues until it is asked to stop."""


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


class _StepHandshake(keras.callbacks.Callback):
    """The loop and `fit` in turns: while one works, the other waits.

    `fit` waits here, after a step, and not for data inside the next one: that step's function would read variables,
    such as the learning rate, before its batch comes, and its collectives would deadlock with those of the loop.
    """

    def __init__(self) -> None:
        super().__init__()
        self._done: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._more: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._done.put(None)
        self.model.stop_training = not self._more.get()

    def wait(self) -> None:
        """Until `fit` has made a step; raises what it raised."""
        if (error := self._done.get()) is not None:
            raise error

    def fail(self, error: Exception) -> None:
        self._done.put(error)

    def proceed(self) -> None:
        self._more.put(True)

    def end(self) -> None:
        self._more.put(False)
