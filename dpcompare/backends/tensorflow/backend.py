"""The part of a backend that all TensorFlow modes share: model, data, one training step, one evaluation step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from dpcompare.backends.base import Counters, Handle, Inspectable
from dpcompare.backends.custom_optimizer import CustomOptimizer
from dpcompare.backends.description import Description, switched
from dpcompare.backends.keras.build import load_model, mapped_slots
from dpcompare.backends.keras.model import layer_outputs, mapped_variables
from dpcompare.backends.tensorflow import runtime
from dpcompare.backends.tensorflow.feed import DeviceFeed
from dpcompare.backends.tensorflow.loss import cross_entropies
from dpcompare.backends.tensorflow.model import build_model
from dpcompare.backends.tensorflow.optimizer import KERNELS, Optimizer, custom_optimizer
from dpcompare.backends.update_rules import UpdateRules
from dpcompare.config.optimizers import FIRST_MOMENTS
from dpcompare.data.batches import BatchLoader, DeviceBatch, HostBatch, prefetch
from dpcompare.models.sealed import read_weights
from dpcompare.models.state import Gradients, State, TrainingState, is_statistic
from dpcompare.system.type_names import Array


class TensorFlowBackend(Inspectable):
    """One process with the replicas of `self.strategy`; the modes say which strategy."""

    packages = ("tensorflow", "keras")

    strategy: tf.distribute.Strategy
    is_server = False
    """Whether this process only serves those that run the loop, from `setup` until it ends."""

    @abstractmethod
    def make_strategy(self) -> tf.distribute.Strategy:
        """The mode's strategy over this process's devices; called once they are configured."""

    def local_devices(self) -> list[str]:
        """This process's devices as TensorFlow names them, one per replica."""
        kind = "GPU" if self.config.cluster.device_type == "gpu" else "CPU"
        return [f"/device:{kind}:{index}" for index in range(self.config.topology.replicas_per_process)]

    def build_model(self) -> keras.Model:
        """The model to train; override it together with `initial_state` to train another."""
        names = self.inputs.layers.get("tensorflow", {})
        return build_model(self.workload, self.inputs.num_classes, names, self.config.drop_columns)

    def initial_state(self) -> State | None:
        """The model's tensors to start from: the file that all backends share. None keeps those of `build_model`."""
        return read_weights(self.inputs.weights)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor of the model in the neutral layouts, once it is built."""
        return {mapped.name: mapped.neutral_shape for mapped in mapped_variables(self.model)}

    def row_losses(self, logits: tf.Tensor, labels: tf.Tensor, *, training: bool) -> tf.Tensor:
        """The loss of each row, from logits (rows, classes) and labels (rows,); override it to train with another.

        It is traced. Their sum over the global batch is divided by its number of samples. What is returned for padding
        is ignored, if it is finite.
        """
        return cross_entropies(labels, logits, self.workload.label_smoothing if training else 0.0)

    def build_optimizer(self, variables: Sequence[tf.Variable]) -> Optimizer:
        """What updates the model's variables; override it to train with another."""
        return KERNELS[self.workload.optimizer](variables, UpdateRules.of(self.workload))

    def custom_optimizer(
        self, given: CustomOptimizer | Callable[..., Optimizer], variables: Sequence[tf.Variable]
    ) -> Optimizer:
        """The optimizer that a user gives."""
        return custom_optimizer(given, variables, UpdateRules.of(self.workload))

    def setup(self) -> None:
        self._training: bool | None = None
        self._step = 0
        self._configure_devices()
        self._dtype = runtime.configure_precision(self.config)
        self.strategy = self.make_strategy()
        self.num_replicas = self.strategy.num_replicas_in_sync
        with self.strategy.scope():
            self._build()
        if (initial := self.initial_state()) is not None:
            self._load_model(initial)
        self._seed_own_draws()
        self._make_functions()
        self._device_feed = DeviceFeed(
            self.strategy, self.local_devices(), self._dtype, device_type=self.config.cluster.device_type
        )

    def _seed_own_draws(self) -> None:
        """Seed what Keras's layers of dropout draw from; Keras itself takes other seeds in each process."""
        generators = (each for layer in self.model._flatten_layers() for each in layer._seed_generators)
        for number, generator in enumerate(generators):
            generator.state.assign([self._seed_of_own_draws(self._step, number), 0])

    def _configure_devices(self) -> None:
        runtime.configure_devices(self.config)

    def _build(self) -> None:
        """The model, its optimizer and the sums of its gradients; called inside the strategy's scope."""
        self.model = self.build_model()
        self._parameters = [variable.value for variable in self.model.trainable_variables]
        # The model's list of what is not trained also holds the seeds of its dropout layers.
        self._statistics = [
            mapped.variable.value for mapped in mapped_variables(self.model) if not mapped.variable.trainable
        ]
        self.optimizer = self.build_optimizer(self._parameters)
        self._images_computed = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._gradient_sums = (
            [tf.Variable(tf.zeros_like(parameter), trainable=False) for parameter in self._parameters]
            if self.workload.accumulate > 1
            else []
        )

    def _make_functions(self) -> None:
        """The steps as graphs, which TensorFlow traces when they are first called."""
        # autograph: the functions have no Python control flow to translate.
        function = tf.function(autograph=False, jit_compile=False)
        step_function = tf.function(autograph=False, jit_compile=self._asks_for_xla)
        self._train = step_function(self._train_global_batch)
        self._traced: Any = None
        self._accumulate = step_function(self._accumulate_micro_batch)
        self._apply = function(self._apply_accumulated)
        self._evaluate = function(self._evaluate_global_batch)
        self._training_logits, self._evaluation_logits = (
            function(partial(self._logits_of_global_batch, training=training)) for training in (True, False)
        )
        self._broadcast_statistics = function(self._copy_statistics_of_replica_0)

    @property
    def _asks_for_xla(self) -> bool:
        return self.config.tuning.get("compilation") == "XLA"

    @property
    def _is_step_compiled(self) -> bool:
        """Whether XLA compiles a step, as its functions say, whoever has made them."""
        return any(function._jit_compile for function in self.step_functions)

    @property
    def num_compilations(self) -> int:
        return sum(function.experimental_get_tracing_count() for function in self.step_functions)

    @property
    def step_functions(self) -> Sequence[tf.types.experimental.PolymorphicFunction]:
        """The graphs that a training step consists of."""
        return (self._train, self._accumulate, self._apply)

    def prefetch_to_device(self, batch_loaders: Iterable[BatchLoader]) -> Iterator[DeviceBatch]:
        # Each thread places whole batches: one that waits for a replica's copy leaves the other replicas to the others.
        return prefetch(batch_loaders, lambda load: self._to_device(load()), self.input_threads)

    def _to_device(self, batch: HostBatch) -> DeviceBatch:
        return self._device_feed.place(batch)

    def train_step(self, batches: Sequence[DeviceBatch], learning_rate: float) -> Handle:
        self._set_training_mode(training=True)
        self._step += 1
        constants = tf.constant(self.optimizer.step_constants(self._step, learning_rate), tf.float64)
        counts = [tf.constant(batch.global_count, self._dtype) for batch in batches]
        parts = [
            (batch.images, batch.labels, batch.weights, batch.drop_masks, count)
            for batch, count in zip(batches, counts, strict=True)
        ]
        if len(parts) == 1:
            if self._traced is None:  # called directly: to look it up takes a tenth of a small model's step
                self._traced = self._train.get_concrete_function(*parts[0], constants)
            return self._traced(*parts[0], constants)
        loss_sum = tf.add_n([self._accumulate(*part) for part in parts])
        self._apply(constants)
        return loss_sum

    def _logits_of_global_batch(self, images: Any, drop_masks: Any, *, training: bool) -> Any:
        return self.strategy.run(partial(self._forward, training=training), (images, drop_masks))

    def _train_global_batch(
        self, images: Any, labels: Any, weights: Any, drop_masks: Any, count: Any, constants: Any
    ) -> Any:
        def replica_step(*batch: tf.Tensor) -> tf.Tensor:
            loss_sum, gradients = self._gradients(*batch)
            self._update(gradients, constants)
            return loss_sum

        return self._local_sum(self.strategy.run(replica_step, (images, labels, weights, drop_masks, count)))

    def _accumulate_micro_batch(self, images: Any, labels: Any, weights: Any, drop_masks: Any, count: Any) -> Any:
        def replica_step(*batch: tf.Tensor) -> tf.Tensor:
            loss_sum, gradients = self._gradients(*batch)
            for total, gradient in zip(self._gradient_sums, gradients, strict=True):
                tf.raw_ops.AssignAddVariableOp(resource=total.handle, value=gradient)
            return loss_sum

        return self._local_sum(self.strategy.run(replica_step, (images, labels, weights, drop_masks, count)))

    def _apply_accumulated(self, constants: tf.Tensor) -> None:
        def replica_step() -> None:
            self._update([tf.identity(total) for total in self._gradient_sums], constants)
            for total in self._gradient_sums:
                tf.raw_ops.AssignVariableOp(resource=total.handle, value=tf.zeros(total.shape, total.dtype))

        self.strategy.run(replica_step)

    def _gradients(
        self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, drop_masks: tf.Tensor | None, count: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """This replica's sum of losses, and its part of the gradient of the mean over the global batch."""
        with tf.GradientTape() as tape:
            _, losses = self._losses(images, labels, weights, drop_masks, training=True)
            loss_sum = tf.reduce_sum(losses)
            loss = loss_sum / count
        # TensorFlow has those of embeddings as some rows; the other frameworks sum and exchange whole tensors.
        return loss_sum, [tf.convert_to_tensor(each) for each in tape.gradient(loss, self._parameters)]

    def _update(self, gradients: list[tf.Tensor], constants: tf.Tensor) -> None:
        """Sum the gradients of all replicas and update this replica's copy of the parameters."""
        if self.num_replicas > 1 and self.config.sync_gradients:
            replica = tf.distribute.get_replica_context()
            gradients = replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        self.optimizer.apply(gradients, constants)

    def evaluate_step(self, batch: DeviceBatch) -> Handle:
        self._set_training_mode(training=False)
        return self._evaluate(batch.images, batch.labels, batch.weights)

    def _evaluate_global_batch(self, images: Any, labels: Any, weights: Any) -> Any:
        return self._local_sum(self.strategy.run(self._evaluate_replica, (images, labels, weights)))

    def _evaluate_replica(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        num_rows = images.shape[0]
        rows = self.rows_evaluated_at_once(num_rows)
        if rows == num_rows:
            return self._evaluate_rows(images, labels, weights)
        parts = tuple(tf.reshape(each, [-1, rows, *each.shape[1:]]) for each in (images, labels, weights))
        # A loop that begins with a part when it has ended with the one before: TensorFlow would make them side by side.
        sums = tf.map_fn(
            lambda part: self._evaluate_rows(*part), parts, fn_output_signature=weights.dtype, parallel_iterations=1
        )
        return tf.reduce_sum(sums, axis=0)

    def _evaluate_rows(self, images: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        logits, losses = self._losses(images, labels, weights, None, training=False)
        hits = tf.cast(tf.argmax(logits, axis=1, output_type=labels.dtype) == labels, weights.dtype)
        return tf.stack([tf.reduce_sum(losses), tf.reduce_sum(hits * weights), tf.reduce_sum(weights)])

    def logits(self, batch: DeviceBatch, *, training: bool) -> Array:
        self._set_training_mode(training=training)
        function = self._training_logits if training else self._evaluation_logits
        return self._local_rows(function(batch.images, batch.drop_masks))

    def activations(self, batch: DeviceBatch) -> dict[str, Array]:
        return self._activations(self._local_rows(batch.images))

    def _activations(self, images: Array) -> dict[str, Array]:
        self._set_training_mode(training=False)
        features = keras.Model(self.model.inputs, layer_outputs(self.model))(
            self._inputs_of_model(tf.constant(images), None), training=False
        )
        return {name: np.asarray(value) for name, value in features.items()}

    def to_host(self, batch: DeviceBatch) -> dict[str, Array]:
        return {name: self._local_rows(array) for name, array in batch.arrays.items()}

    def _local_rows(self, per_replica: Any) -> Array:
        """The rows of this process's replicas, one replica after another."""
        return np.concatenate([part.numpy() for part in self.strategy.experimental_local_results(per_replica)])

    def _forward(self, images: tf.Tensor, drop_masks: tf.Tensor | None, *, training: bool) -> tf.Tensor:
        """The logits of a replica's rows."""
        return tf.cast(self.model(self._inputs_of_model(images, drop_masks), training=training), self._dtype)

    def _inputs_of_model(self, images: Any, drop_masks: tf.Tensor | None) -> Any:
        """What the model takes of rows: drop masks too where it regularizes, which evaluation does not."""
        if len(self.model.inputs) == 1:
            return images
        if drop_masks is None:
            drop_masks = tf.ones([tf.shape(images)[0], self.model.inputs[1].shape[1]], self._dtype)
        return [images, drop_masks]

    def _losses(
        self,
        images: tf.Tensor,
        labels: tf.Tensor,
        weights: tf.Tensor,
        drop_masks: tf.Tensor | None,
        *,
        training: bool,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Logits, and the loss of each row: 0 for padding rows."""
        logits = self._forward(images, drop_masks, training=training)
        losses = self.row_losses(logits, labels, training=training)
        if training:
            count = tf.cast(tf.reduce_sum(weights), tf.int64)
            tf.raw_ops.AssignAddVariableOp(resource=self._images_computed.handle, value=count)
        return logits, losses * weights

    def _local_sum(self, per_replica: Any) -> tf.Tensor:
        """The sum over this process's replicas; the processes are summed when results are collected."""
        return tf.add_n(self.strategy.experimental_local_results(per_replica))

    def _set_training_mode(self, *, training: bool) -> None:
        """Switch between training and evaluation, where the statistics of replica 0 hold for all."""
        if training == self._training:
            return
        self._training = training
        if not training and self.num_replicas > 1 and self._statistics:
            self._broadcast_statistics()

    def _copy_statistics_of_replica_0(self) -> None:
        """Under the strategies each replica keeps separate BatchNorm statistics (aggregation NONE)."""

        def copy() -> None:
            replica = tf.distribute.get_replica_context()
            is_first = tf.cast(replica.replica_id_in_sync_group == 0, self._dtype)
            # One collective for all: everyone but replica 0 adds zeros.
            flat = tf.concat([tf.reshape(value, [-1]) for value in self._statistics], axis=0) * is_first
            flat = replica.all_reduce(tf.distribute.ReduceOp.SUM, flat)
            parts = tf.split(flat, [int(np.prod(value.shape)) for value in self._statistics])
            for value, part in zip(self._statistics, parts, strict=True):
                value.assign(tf.reshape(part, value.shape))

        self.strategy.run(copy)

    def synchronize(self, *, drain: bool = False) -> None:
        """Wait for the devices: on the CPU a step has ended when its call returns."""
        if self.config.cluster.device_type == "gpu":
            tf.test.experimental.sync_devices()

    def reset_peak_memory(self) -> None:
        for gpu in self._metered_gpus():
            tf.config.experimental.reset_memory_stats(gpu)

    def read(self, handles: Sequence[tf.Tensor]) -> npt.NDArray[np.float64]:
        return np.array([handle.numpy() for handle in handles], np.float64)

    def state(self) -> TrainingState:
        self._set_training_mode(training=False)
        return TrainingState(
            model={mapped.name: mapped.on_host(mapped.variable) for mapped in mapped_variables(self.model)},
            optimizer={
                name: mapped.on_host(slot)
                for name, (mapped, slot) in mapped_slots(self.model, self.optimizer.slots).items()
            },
            step=self._step,
        )

    def load_state(self, state: TrainingState) -> None:
        self._load_model(state.model)
        for name, (mapped, slot) in mapped_slots(self.model, self.optimizer.slots).items():
            if state.step:
                slot.assign(mapped.layout.from_neutral(state.optimizer[name]))
            else:  # torch makes its slots in the first step
                slot.assign(tf.zeros_like(slot))
        self._step = state.step
        self._seed_own_draws()

    def _load_model(self, state: State) -> None:
        load_model(self.model, state, self.workload.model)
        self._training = None

    def tensors_of_replicas(self) -> Iterator[tuple[str, Sequence[Array]]]:
        parameters = {
            mapped.name: (mapped, mapped.variable.value)
            for mapped in mapped_variables(self.model)
            if not is_statistic(mapped.name)
        }
        for name, (mapped, tensor) in {**parameters, **mapped_slots(self.model, self.optimizer.slots)}.items():
            copies = self.strategy.experimental_local_results(tensor)
            yield name, [np.ascontiguousarray(mapped.layout.to_neutral(copy.numpy())) for copy in copies]

    def first_grad_norm_sq(self) -> float | None:
        copies = [
            copy.numpy().astype(np.float64) / FIRST_MOMENTS[slot]
            for slot, values in self.optimizer.slots.items()
            if slot in FIRST_MOMENTS
            for value in values
            for copy in self.strategy.experimental_local_results(value)
        ]
        return float(sum(np.square(copy).sum() for copy in copies)) / self.num_replicas

    def counters(self) -> Counters:
        return Counters(
            optimizer_steps=self._optimizer_steps(), images=sum(self._on_each_replica(self._images_computed))
        )

    def _optimizer_steps(self) -> int | None:
        """The steps of the replica here that has taken the fewest."""
        return min(self._on_each_replica(self.optimizer.steps_taken))

    def _on_each_replica(self, count: tf.Variable) -> list[int]:
        """A count of each of this process's replicas."""
        return [int(copy.numpy()) for copy in self.strategy.experimental_local_results(count)]

    def barrier(self) -> None:
        """Nothing: one process has no other to wait for."""

    def teardown(self) -> None:
        """Nothing: one process leaves no other behind."""

    def profile(self, path: Path) -> AbstractContextManager[None]:
        # Here, since a TensorFlow that moves what this needs must not break runs that keep no trace.
        from dpcompare.backends.tensorflow.trace import chrome_trace

        return chrome_trace(path)

    def describe(self) -> Description:
        description = replace(
            super().describe(),
            devices=self._device_names(),
            peak_device_memory_bytes=self._peak_device_memory_bytes(),
            threads=runtime.threads(),
            threads_asked=runtime.intra_op_threads(self.config),
            # Not what optimizes graphs: MultiWorkerMirroredStrategy switches some of that itself.
            switches=switched(
                {
                    "eager functions of TensorFlow": tf.config.functions_run_eagerly(),
                    "XLA auto-clustering of TensorFlow on": bool(tf.config.optimizer.get_jit()),
                    "XLA (jit_compile) of TensorFlow's step on": self._is_step_compiled and not self._asks_for_xla,
                }
            ),
            libraries=runtime.libraries(self.config),
            gradients=None if self.is_server else self._gradients_exchanged(),
        ).with_settings(memory_layout="NHWC", optimizer_kernels="ResourceApply", tf32=runtime.takes_tf32())
        if runtime.has_fixed_algorithms(self.config):
            return description.with_settings(convolution_algorithms="fixed")
        return description

    def _gradients_exchanged(self) -> Gradients:
        """All in one message: `CommunicationOptions.bytes_per_pack` is 0, which makes one pack."""
        num_bytes = sum(parameter.shape.num_elements() * parameter.dtype.size for parameter in self._parameters)
        return Gradients(num_bytes=num_bytes, messages=(num_bytes,))

    def _device_names(self) -> list[str]:
        if self.config.cluster.device_type == "cpu":
            return list(self.config.cluster.nodes[self.process_rank].devices)
        return runtime.gpu_names()

    def _peak_device_memory_bytes(self) -> int | None:
        gpus = self._metered_gpus()
        return sum(tf.config.experimental.get_memory_info(gpu)["peak"] for gpu in gpus) if gpus else None

    def _metered_gpus(self) -> list[str]:
        """This process's GPUs, as TensorFlow's counters of memory name them."""
        if self.config.cluster.device_type != "gpu" or self.is_server:  # one that keeps parameters sees no GPU
            return []
        return [device.removeprefix("/device:") for device in self.local_devices()]
