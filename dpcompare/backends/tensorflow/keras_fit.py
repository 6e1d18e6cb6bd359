"""tensorflow keras-fit: Keras's own `fit` under MirroredStrategy, as most people train, to tell what it costs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from dpcompare.arithmetic import ADAM_BETAS, ADAM_EPSILON
from dpcompare.backends.base import State
from dpcompare.backends.tensorflow.backend import TensorFlowBackend
from dpcompare.data.batches import HostBatch, prefetch


class KerasFit(TensorFlowBackend):
    """`fit` runs in a thread of its own, which gets each batch when the loop has it and tells when its step is done."""

    def make_strategy(self) -> tf.distribute.Strategy:
        return tf.distribute.MirroredStrategy(self.local_devices())

    def setup(self) -> None:
        super().setup()
        with self.strategy.scope():
            self._loss = _WeightedLoss(self._dtype)
            # By the formula of ours, in a dozen operations per variable where ours spends one.
            self._adam = keras.optimizers.Adam(beta_1=ADAM_BETAS[0], beta_2=ADAM_BETAS[1], epsilon=ADAM_EPSILON)
            self._adam.build(self.model.trainable_variables)
            self.model.compile(optimizer=self._adam, loss=self._loss, jit_compile=False)
        self.optimizer.slots = {
            name: [variable.value for variable in variables]
            for name, variables in (("exp_avg", self._adam._momentums), ("exp_avg_sq", self._adam._velocities))
        }
        self._batches: queue.SimpleQueue[tuple[Any, Any, Any] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._iterators = 0
        self._fitting: threading.Thread | None = None

    def feed(self, batches: Iterable[HostBatch]) -> Iterator[Any]:
        """As they are on the host: `fit` places them itself, and what evaluates does where it needs them."""
        return prefetch(batches, lambda batch: batch)

    def train_step(self, batches: Sequence[Any], learning_rate: float) -> Any:
        self._enter(training=True)
        (batch,) = batches
        if self._fitting is None:
            self._fitting = threading.Thread(target=self._fit, args=(batch,), name="fit", daemon=True)
            self._fitting.start()
        self._adam.learning_rate.assign(np.float64(learning_rate))  # a number of Python's would be rounded to float32
        images: Any = self._in_precision(batch.images)
        if batch.factors is not None:
            images = (images, self._in_precision(batch.factors))
        self._batches.put((images, batch.labels, batch.weights / np.float64(batch.global_count)))
        if (error := self._done.get()) is not None:
            raise error
        return self._loss.total.read_value() * tf.cast(batch.global_count, self._dtype)

    def _in_precision(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return array.astype(self._dtype.as_numpy_dtype, copy=False)

    def _fit(self, first: HostBatch) -> None:
        def spec(array: Any, dtype: tf.DType) -> tf.TensorSpec:
            return tf.TensorSpec(array.shape, dtype)

        images: Any = spec(first.images, self._dtype)
        if first.factors is not None:
            images = (images, spec(first.factors, self._dtype))
        signature = (images, spec(first.labels, tf.int32), spec(first.weights, tf.float64))
        dataset = tf.data.Dataset.from_generator(lambda: self._given(signature), output_signature=signature)
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        try:
            self.model.fit(dataset.with_options(options), epochs=1, verbose=0, callbacks=[_AfterEachBatch(self._done)])
            self._done.put(
                RuntimeError("Keras ended its fit by itself")
            )  # nobody waits for it where all batches were given
        except Exception as error:  # raised where the step is waited for
            self._done.put(error)

    def _given(self, signature: Any) -> Iterator[Any]:
        """The batches, but not to the first iterator: Keras looks at what one gives, throws it away, and begins anew."""
        self._iterators += 1
        if self._iterators == 1:
            yield tf.nest.map_structure(lambda spec: np.zeros(spec.shape, spec.dtype.as_numpy_dtype), signature)
        else:
            yield from iter(self._batches.get, None)

    def evaluate_step(self, batch: Any) -> Any:
        return super().evaluate_step(self._to_device(batch))

    def logits(self, batch: Any, *, training: bool) -> Any:
        return super().logits(self._to_device(batch), training=training)

    def to_host(self, batch: Any) -> Any:
        return super().to_host(self._to_device(batch))

    def load_optimizer_state(self, slots: State, steps_taken: int) -> None:
        super().load_optimizer_state(slots, steps_taken)
        self._adam.iterations.assign(steps_taken)

    def settings(self) -> dict[str, Any]:
        settings = super().settings() | {"loop": "Keras fit"}
        if self.workload.precision == "float64":
            settings["optimizer"] |= {"constants": "rounded to float32"}
        return settings

    def teardown(self) -> None:
        if self._fitting is not None:
            self._batches.put(None)
            self._fitting.join()


class _WeightedLoss(keras.losses.Loss):
    """The sum of the losses of all rows by their weights, which is told too: Keras itself tells a mean over an epoch."""

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


class _AfterEachBatch(keras.callbacks.Callback):
    def __init__(self, done: queue.SimpleQueue[BaseException | None]) -> None:
        super().__init__()
        self._done = done

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._done.put(None)
