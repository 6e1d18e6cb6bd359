"""tensorflow keras-fit: Keras's own `fit` under MirroredStrategy, as most people train, to measure what it costs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from dpcompare.backends.constants import ADAM_BETAS, ADAM_EPSILON
from dpcompare.backends.description import Description
from dpcompare.backends.tensorflow.backend import TensorFlowBackend
from dpcompare.data.batches import HostRead, prefetch
from dpcompare.models.state import TrainingState


class KerasFit(TensorFlowBackend):
    """`fit` runs in a separate thread; each step the loop gives it a batch, lets it continue, and waits for it."""

    def make_strategy(self) -> tf.distribute.Strategy:
        return tf.distribute.MirroredStrategy(self.local_devices())

    def setup(self) -> None:
        super().setup()
        with self.strategy.scope():
            self._loss = _WeightedLoss(self._dtype)
            # The formula of our optimizer.py, in a dozen operations per variable instead of one.
            self._adam = keras.optimizers.Adam(beta_1=ADAM_BETAS[0], beta_2=ADAM_BETAS[1], epsilon=ADAM_EPSILON)
            self._adam.build(self.model.trainable_variables)
            self.model.compile(optimizer=self._adam, loss=self._loss, jit_compile=False)
        self.optimizer.slots = {
            name: [variable.value for variable in variables]
            for name, variables in (("exp_avg", self._adam._momentums), ("exp_avg_sq", self._adam._velocities))
        }
        self._turns = _Turns()
        self._peeked = False
        self._fitting: threading.Thread | None = None

    def feed(self, reads: Iterable[HostRead]) -> Iterator[Any]:
        """As they are on the host: `fit` places them itself, and evaluation places them when it needs them."""
        return prefetch(reads, lambda read: read().looked_up(), self.input_threads)

    def train_step(self, batches: Sequence[Any], learning_rate: float) -> Any:
        self._enter(training=True)
        self._step += 1
        (batch,) = batches
        self._adam.learning_rate.assign(np.float64(learning_rate))  # a Python float would be rounded to float32
        images: Any = self._in_precision(batch.images)
        if batch.drop_masks is not None:
            images = (images, self._in_precision(batch.drop_masks))
        inputs = (images, batch.labels, batch.weights / np.float64(batch.global_count))
        if self._fitting is None:
            arrays = tf.nest.flatten(inputs)
            self._inputs = tf.queue.FIFOQueue(1, [array.dtype for array in arrays], [array.shape for array in arrays])
            self._fitting = threading.Thread(target=self._fit, args=(inputs,), name="fit", daemon=True)
        self._inputs.enqueue(tf.nest.flatten(inputs))
        if self._fitting.is_alive():
            self._turns.proceed()
        else:
            self._fitting.start()
        self._turns.wait()
        return self._loss.total.read_value() * tf.cast(batch.global_count, self._dtype)

    def _in_precision(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array.astype(self._dtype.as_numpy_dtype, copy=False)

    def _fit(self, like: Any) -> None:
        """Keras's `fit` on batches of the shapes and types of `like`."""

        def nothing() -> list[tf.Tensor]:
            return [tf.zeros(array.shape, array.dtype) for array in tf.nest.flatten(like)]

        # A Python generator that waited for batches would keep one of TensorFlow's few threads from the step.
        dataset = tf.data.Dataset.from_generator(self._iterator, output_signature=tf.TensorSpec((), tf.bool)).map(
            lambda peek: tf.nest.pack_sequence_as(like, tf.cond(peek, nothing, self._inputs.dequeue))
        )
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        try:
            self.model.fit(dataset.with_options(options), epochs=1, verbose=0, callbacks=[self._turns])
            # Nobody waits for it where fit was asked to end.
            self._turns.fail(RuntimeError("Keras ended its fit by itself; is KERAS_MAX_STEPS_PER_EPOCH set?"))
        except Exception as error:  # raised where the step is waited for
            self._turns.fail(error)

    def _iterator(self) -> Iterator[bool]:
        """Whether Keras only peeks: it takes one batch of a first iterator, throws that away, and starts a new one."""
        if self._peeked:
            yield from repeat(False)
        self._peeked = True
        yield True

    def evaluate_step(self, batch: Any) -> Any:
        return super().evaluate_step(self._to_device(batch))

    def logits(self, batch: Any, *, training: bool) -> Any:
        return super().logits(self._to_device(batch), training=training)

    def to_host(self, batch: Any) -> Any:
        return super().to_host(self._to_device(batch))

    def load_state(self, state: TrainingState) -> None:
        super().load_state(state)
        self._adam.iterations.assign(state.step)

    def describe(self) -> Description:
        description = super().describe().with_settings(loop="Keras fit", optimizer_kernels="Keras")
        if self.workload.precision == "float64":
            optimizer = description.settings["optimizer"] | {"constants": "rounded to float32"}
            return description.with_settings(optimizer=optimizer)
        return description

    def teardown(self) -> None:
        if self._fitting is not None:
            self._inputs.close()
            self._turns.end()
            self._fitting.join()


class _WeightedLoss(keras.losses.Loss):
    """The weighted sum of the losses of all rows, kept for the loop: Keras itself reports a mean over an epoch."""

    def __init__(self, dtype: tf.DType) -> None:
        super().__init__()
        self.total = tf.Variable(
            tf.zeros((), dtype),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    def __call__(self, labels: Any, logits: Any, sample_weight: Any = None) -> Any:
        dtype = self.total.dtype
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.cast(tf.reshape(labels, [-1]), tf.int32), logits=tf.cast(logits, dtype)
        )
        total = tf.reduce_sum(losses * tf.cast(tf.reshape(sample_weight, [-1]), dtype))
        self.total.assign(total)
        return total


class _Turns(keras.callbacks.Callback):
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
