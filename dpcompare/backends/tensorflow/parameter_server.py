"""tensorflow parameter-server: ParameterServerStrategy, whose asynchronous workers update a server's parameters."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from dpcompare.backends.base import Handle
from dpcompare.backends.description import Description
from dpcompare.backends.tensorflow import runtime
from dpcompare.backends.tensorflow.backend import TensorFlowBackend
from dpcompare.data.batches import DeviceBatch, HostBatch
from dpcompare.data.names import parts_trained
from dpcompare.models.state import TrainingState
from dpcompare.system.type_names import Array

STEPS_PER_WORKER = 2
"""Scheduled at once: one that it makes, and one that it has next."""


class ParameterServer(TensorFlowBackend):
    """Node 0 coordinates, node 1 keeps the parameters, the others are workers: TF_CONFIG says who is who.

    The coordinator runs the loop. Each worker's part of a global batch is a separate update, by the mean of its rows,
    made with the parameters as they were when it started; how many updates of others came in between is its staleness.
    """

    def setup(self) -> None:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        tasks = {job: len(addresses) for job, addresses in resolver.cluster_spec().as_dict().items()}
        first_rank = {"chief": 0, "ps": 1, "worker": 2}
        self.process_rank = first_rank[resolver.task_type] + resolver.task_id
        self.num_processes, self.num_replicas = sum(tasks.values()), tasks["worker"]
        self.is_server = self.process_rank not in self.config.topology.trainers
        if self.is_server:
            self._serve(resolver)
        else:
            self._resolver = resolver
            self._coordinate()

    def _serve(self, resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
        threads = self.config.topology.threads_per_process
        runtime.configure_precision(self.config)
        session = tf.compat.v1.ConfigProto(
            inter_op_parallelism_threads=runtime.inter_op_threads(self.config), intra_op_parallelism_threads=threads
        )
        session.gpu_options.allow_growth = True  # a server does not look at the setting that other processes have
        self._server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol="grpc",
            config=session,
        )

    def _coordinate(self) -> None:
        num_replicas = self.num_replicas
        super().setup()
        self.num_replicas = num_replicas  # TensorFlow counts one, since nothing is in sync
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        with self.strategy.scope():
            self._updates = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._update_once = tf.function(self._update_of_worker, autograph=False)
        self._num_scheduled = 0
        self._scheduled: deque[Any] = deque()
        self._staleness: list[int] = []

    @property
    def step_functions(self) -> Sequence[tf.types.experimental.PolymorphicFunction]:
        return () if self.is_server else (self._update_once,)

    def make_strategy(self) -> tf.distribute.Strategy:
        return tf.distribute.ParameterServerStrategy(self._resolver)

    @property
    def data_parallel_rank(self) -> int:
        return 0

    @property
    def data_parallel_size(self) -> int:
        return 1  # the coordinator reads the rows of all workers

    def _to_device(self, batch: HostBatch) -> DeviceBatch:
        """The batch in a part per worker; they stay on the host, since it is not known yet which worker takes which."""

        def parts(rows: Array, dtype: tf.DType) -> list[Array]:
            return np.split(rows.astype(dtype.as_numpy_dtype), self.num_replicas)

        return DeviceBatch(
            images=parts(batch.images, self._dtype),
            labels=parts(batch.labels, tf.int32),
            weights=parts(batch.weights, self._dtype),
            global_count=batch.global_count,
            drop_masks=None if batch.drop_masks is None else parts(batch.drop_masks, self._dtype),
        )

    def train_step(self, batches: Sequence[DeviceBatch], learning_rate: float) -> Handle:
        self._set_training_mode(training=True)
        self._step += 1
        (batch,) = batches
        parts = [number for number in range(self.num_replicas) if batch.weights[number].any()]  # not padding rows alone
        return [self._schedule(batch, number, learning_rate) for number in parts]

    def _schedule(self, batch: DeviceBatch, number: int, learning_rate: float) -> Any:
        """Have the next free worker make the update of a part of a global batch; returns a handle of its result."""
        self._num_scheduled += 1
        constants = np.array(self.optimizer.step_constants(self._num_scheduled, learning_rate), np.float64)
        drop_masks = None if batch.drop_masks is None else tf.constant(batch.drop_masks[number])
        weights = batch.weights[number]
        part = (batch.images[number], batch.labels[number], weights)
        while len(self._scheduled) >= STEPS_PER_WORKER * self.num_replicas:
            self._scheduled.popleft().fetch()
        update = self._coordinator.schedule(
            self._update_once,
            (*map(tf.constant, part), drop_masks, tf.constant(weights.sum()), tf.constant(constants)),
        )
        self._scheduled.append(update)
        return update

    def _update_of_worker(
        self, images: Any, labels: Any, weights: Any, drop_masks: Any, count: Any, constants: Any
    ) -> Any:
        """Returns the sum of losses and the staleness."""
        before = self._updates.read_value()
        with tf.control_dependencies([before]):
            loss_sum, gradients = self._gradients(images, labels, weights, drop_masks, count)
        with tf.control_dependencies(self.optimizer.apply(gradients, constants)):  # else it counts when it starts
            after = self._updates.assign_add(1, read_value=True)
        return tf.stack([tf.cast(loss_sum, tf.float64), tf.cast(after - 1 - before, tf.float64)])

    def synchronize(self, *, drain: bool = False) -> None:
        super().synchronize()
        if drain:
            self._coordinator.join()

    def load_state(self, state: TrainingState) -> None:
        super().load_state(state)
        self._num_scheduled = parts_trained(
            self.inputs.num_train,
            self.workload.global_batch_size,
            num_parts=self.num_replicas,
            num_steps=state.step,
        )  # every worker's part is an update

    def activations(self, batch: DeviceBatch) -> dict[str, Array]:
        return self._activations(np.concatenate(batch.images))

    def read(self, handles: Sequence[Handle]) -> npt.NDArray[np.float64]:
        if isinstance(handles[0], tf.Tensor):
            return super().read(handles)
        values = [np.array([update.fetch() for update in step]) for step in handles]
        self._staleness += [int(staleness) for step in values for staleness in step[:, 1]]
        return np.array([step[:, 0].sum() for step in values], np.float64)

    def evaluate_step(self, batch: DeviceBatch) -> Handle:
        self._set_training_mode(training=False)
        return self._evaluate(*(np.concatenate(parts) for parts in (batch.images, batch.labels, batch.weights)))

    def logits(self, batch: DeviceBatch, *, training: bool) -> Array:
        self._set_training_mode(training=training)
        function = self._training_logits if training else self._evaluation_logits
        drop_masks = None if batch.drop_masks is None else np.concatenate(batch.drop_masks)
        return function(np.concatenate(batch.images), drop_masks).numpy()

    def to_host(self, batch: DeviceBatch) -> dict[str, Array]:
        return {name: np.concatenate(parts) for name, parts in batch.arrays.items()}

    def _optimizer_steps(self) -> int | None:
        # Of several workers each makes an update of its part: as many as parts, not as steps.
        return super()._optimizer_steps() if self.num_replicas == 1 else None

    def _set_training_mode(self, *, training: bool) -> None:
        """Wait for the workers, whose updates are all of one copy of the parameters."""
        if training != self._training:
            self._training = training
            self._coordinator.join()

    def describe(self) -> Description:
        description = super().describe()
        if self.is_server:
            return description
        staleness = {"mean": float(np.mean(self._staleness)), "max": max(self._staleness)} if self._staleness else None
        updates = "asynchronous" if self.num_replicas > 1 else "synchronous"
        return description.with_settings(updates=updates, staleness=staleness)

    def teardown(self) -> None:
        if not self.is_server:
            self._coordinator.join()
