"""The part of a backend that all JAX modes share: model, data, one training step, one evaluation step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
import numpy.typing as npt
from jax import lax
from jax import numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from dpcompare.backends.base import Counters, Inspectable
from dpcompare.backends.custom_optimizer import CustomOptimizer
from dpcompare.backends.description import Description, switched
from dpcompare.backends.jax import runtime
from dpcompare.backends.jax.arrays import REPLICAS, REPLICATED, SHARDED, local_rows, mesh_of_replicas
from dpcompare.backends.jax.feed import DeviceFeed
from dpcompare.backends.jax.loss import cross_entropies
from dpcompare.backends.jax.model import Model, build_model
from dpcompare.backends.jax.optimizer import KERNELS, Optimizer, Tensors, custom_optimizer
from dpcompare.backends.jax.train_state import TrainState, partition_specs
from dpcompare.backends.update_rules import UpdateRules
from dpcompare.data.batches import BatchLoader, DeviceBatch, prefetch
from dpcompare.models.sealed import read_weights
from dpcompare.models.state import State, TrainingState
from dpcompare.system.type_names import Array

COMPILED = "/jax/core/compile/backend_compile_duration"
"""JAX's event of a function that was compiled, or found in the cache of those that were."""


class Rows(NamedTuple):
    """A micro-batch of one replica, or of all."""

    images: jax.Array
    labels: jax.Array
    weights: jax.Array
    drop_masks: jax.Array | None


class JaxBackend(Inspectable):
    """One process with the replicas on its devices; the modes say how processes meet.

    A step is one compiled function of what was trained so far, which it replaces. It is written for one replica, and
    every replica computes it with its own rows; see `backends.jax.jit` for the other way.
    """

    packages = ("jax", "jaxlib", "flax", "equinox", "keras")
    of_step: ClassVar[PartitionSpec] = SHARDED
    """The partition of what each step has for itself, such as the statistics of BatchNorm."""

    model: Model
    mesh: Mesh
    """The devices of all replicas, in the order of the processes."""

    @property
    def replicas_of_step(self) -> int:
        """The replicas whose rows a step has."""
        return 1

    def connect(self) -> None:
        """Join the other processes; called before JAX looks for devices."""

    def build_model(self) -> Model:
        """The model to train; override it together with `initial_state` to train another."""
        return build_model(
            self.workload,
            self.inputs.num_classes,
            self.inputs.layers.get("jax", {}),
            self.config.drop_columns,
            by_shifts=self.config.tuning["convolutions"] == "shifts",
            over_devices=self.replicas_of_step > 1,
        )

    def initial_state(self) -> State | None:
        """The model's tensors to start from: the file that all backends share. None takes those of `Model.init`."""
        return read_weights(self.inputs.weights)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor of the model, once it is built."""
        return {name: np.shape(array) for name, array in self.model.init().items()}

    def row_losses(self, logits: jax.Array, labels: jax.Array, *, training: bool) -> jax.Array:
        """The loss of each row, from logits (rows, classes) and labels (rows,); override it to train with another.

        It is traced. Their sum over the global batch is divided by its number of samples. What is returned for padding
        is ignored, if it is finite.
        """
        return cross_entropies(labels, logits, self.workload.label_smoothing if training else 0.0)

    def custom_optimizer(self, given: CustomOptimizer | Callable[[], Optimizer]) -> Optimizer:
        """The optimizer that a user gives."""
        return custom_optimizer(given, UpdateRules.of(self.workload))

    def build_optimizer(self) -> Optimizer:
        """What updates the parameters; override it to train with another."""
        return KERNELS[self.workload.optimizer](UpdateRules.of(self.workload))

    def setup(self) -> None:
        self._training: bool | None = None
        self._step = 0
        self._dtype = np.dtype("float64" if self.workload.precision == "float64" else "float32")
        runtime.configure(self.config)
        self.connect()
        self.process_rank, self.num_processes = jax.process_index(), jax.process_count()
        self.num_replicas = jax.device_count()
        runtime.check_devices(self.config)
        self.mesh = mesh_of_replicas()
        # At their first collective gloo has processes wait 30 s for each other, and one may compile for longer.
        self.barrier()
        self._build()
        device_type = self.config.cluster.device_type
        self._device_feed = DeviceFeed(self.mesh, self._dtype, self._over_replicas, device_type=device_type)
        self._make_functions()
        self._count_compilations()

    def _build(self) -> None:
        """The model, its optimizer, and what both start from."""
        self.model = self.build_model()
        self.optimizer = self.build_optimizer()
        initial = self.initial_state()
        initial = {name: np.asarray(array) for name, array in (initial or self.model.init()).items()}
        self._names = list(initial)
        self._train_state = TrainState.empty(self.mesh)
        self.load_state(TrainingState(model=initial, optimizer={}, step=0))

    def _make_functions(self) -> None:
        """The steps as compiled functions, which JAX traces and compiles when they are first called."""
        replaced = (0,) if self.config.tuning.get("donation") == "on" else ()
        function, state, own = self.compiled, partition_specs(self.of_step), self.of_step
        sums = (own, SHARDED)
        self._train = function(
            self._train_replica, (state, SHARDED, REPLICATED, REPLICATED), (state, SHARDED), donated=replaced
        )
        self._accumulate = function(
            self._accumulate_replica, (sums, state, SHARDED, REPLICATED), (sums, state), donated=replaced
        )
        self._no_sums = function(self._no_sums_replica, (state,), sums)
        self._apply = function(self._apply_replica, (state, own, REPLICATED), state, donated=replaced)
        self._evaluate = function(self._evaluate_replica, (state, SHARDED), SHARDED)
        self._training_logits, self._evaluation_logits = (
            function(partial(self._logits_replica, training=training), (state, SHARDED), (SHARDED, own))
            for training in (True, False)
        )
        self._activations = function(self._activations_replica, (state, SHARDED), SHARDED)
        self._broadcast_statistics = self._over_replicas(self._copy_statistics_of_replica_0, (SHARDED,), SHARDED)

    def compiled(
        self, function: Callable[..., Any], inputs: Any, outputs: Any, *, donated: tuple[int, ...] = ()
    ) -> Any:
        """A step, or a part of one, on all devices; arguments that are `donated` are used up.

        Args:
            function: of a training state and rows.
            inputs: the partition of each argument.
            outputs: the partition of what it returns.
            donated: numbers of arguments.
        """
        return self._over_replicas(function, inputs, outputs, donated=donated)

    def _over_replicas(
        self, function: Callable[..., Any], inputs: Any, outputs: Any, *, donated: tuple[int, ...] = ()
    ) -> Any:
        """A function that every replica computes with its parts of the arguments; those `donated` are used up."""
        # check_vma: with it JAX itself sums gradients over replicas, and they could not be left without gradient sync.
        mapped = jax.shard_map(function, mesh=self.mesh, in_specs=inputs, out_specs=outputs, check_vma=False)
        return jax.jit(mapped, donate_argnums=donated, compiler_options=runtime.compiler_options(self.config))

    @property
    def names_of_steps(self) -> set[str]:
        """What a training step consists of, as JAX calls its functions."""
        return {function.__name__ for function in (self._train, self._no_sums, self._accumulate, self._apply)}

    def _count_compilations(self) -> None:
        names = {f"jit({name})" for name in self.names_of_steps}
        self._num_compilations = 0

        def on_event(event: str, duration_secs: float, **about: str | int) -> None:
            if event == COMPILED and about.get("fun_name") in names:
                self._num_compilations += 1

        jax.monitoring.register_event_duration_secs_listener(on_event)

    @property
    def num_compilations(self) -> int:
        return self._num_compilations

    def prefetch_to_device(self, batch_loaders: Iterable[BatchLoader]) -> Iterator[DeviceBatch]:
        return prefetch(batch_loaders, lambda load: self._device_feed.place(load()), self.input_threads)

    def train_step(self, batches: Sequence[DeviceBatch], learning_rate: float) -> jax.Array:
        self._set_training_mode(training=True)
        self._step += 1
        constants = np.array(self.optimizer.step_constants(self._step, learning_rate), self._dtype)
        counts = [np.asarray(batch.global_count, self._dtype) for batch in batches]
        if len(batches) == 1:
            self._train_state, loss_sum = self._train(self._train_state, _rows(batches[0]), counts[0], constants)
            return loss_sum
        sums = self._no_sums(self._train_state)
        for batch, count in zip(batches, counts, strict=True):
            sums, self._train_state = self._accumulate(sums, self._train_state, _rows(batch), count)
        gradient_sums, loss_sum = sums
        self._train_state = self._apply(self._train_state, gradient_sums, constants)
        return loss_sum

    def _train_replica(
        self, train_state: TrainState, rows: Rows, count: jax.Array, constants: jax.Array
    ) -> tuple[TrainState, jax.Array]:
        loss_sums, gradients, train_state = self._gradients(train_state, rows, count)
        return self._update(train_state, gradients, constants), loss_sums

    def _no_sums_replica(self, train_state: TrainState) -> tuple[Tensors, jax.Array]:
        """What micro-batches are added to: a gradient of the step, and a sum of losses of each replica."""
        zeros = {name: jnp.zeros_like(parameter)[None] for name, parameter in train_state.parameters.items()}
        return zeros, jnp.zeros(self.replicas_of_step, self._dtype)

    def _accumulate_replica(
        self, sums: tuple[Tensors, jax.Array], train_state: TrainState, rows: Rows, count: jax.Array
    ) -> tuple[tuple[Tensors, jax.Array], TrainState]:
        gradient_sums, totals = sums
        loss_sums, gradients, train_state = self._gradients(train_state, rows, count)
        gradient_sums = {name: value + gradients[name][None] for name, value in gradient_sums.items()}
        return (gradient_sums, totals + loss_sums), train_state

    def _apply_replica(self, train_state: TrainState, gradient_sums: Tensors, constants: jax.Array) -> TrainState:
        return self._update(train_state, {name: value[0] for name, value in gradient_sums.items()}, constants)

    def _gradients(
        self, train_state: TrainState, rows: Rows, count: jax.Array
    ) -> tuple[jax.Array, Tensors, TrainState]:
        """Each replica's sum of losses, these rows' part of the gradient of the mean over the global batch, and what
        moved."""

        def loss(parameters: Tensors) -> tuple[jax.Array, tuple[jax.Array, Tensors]]:
            _, losses, statistics = self._losses(parameters, train_state.statistics, rows, training=True)
            return losses.sum() / count, (losses, statistics)

        gradients, (losses, statistics) = jax.grad(loss, has_aux=True)(train_state.parameters)
        images = train_state.images_computed + self._sums_of_replicas(rows.weights).astype(np.int32)
        moved = train_state._replace(statistics=statistics, images_computed=images)
        return self._sums_of_replicas(losses), gradients, moved

    def _sums_of_replicas(self, values: jax.Array) -> jax.Array:
        """One sum for each replica whose rows these are values of."""
        return values.reshape(self.replicas_of_step, -1).sum(1)

    def _update(self, train_state: TrainState, gradients: Tensors, constants: jax.Array) -> TrainState:
        """Sum the gradients of all replicas and update this replica's copy of the parameters."""
        if self.num_replicas > self.replicas_of_step and self.config.sync_gradients:
            gradients = lax.psum(gradients, REPLICAS)
        parameters, slots = self.optimizer.apply(train_state.parameters, gradients, train_state.slots, constants)
        return train_state._replace(parameters=parameters, slots=slots, optimizer_steps=train_state.optimizer_steps + 1)

    def _forward(
        self,
        parameters: Tensors,
        statistics: Tensors,
        images: jax.Array,
        drop_masks: jax.Array | None,
        *,
        training: bool,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The logits of rows, and what else the model made."""
        tensors = {**parameters, **{name: value[0] for name, value in statistics.items()}}
        synchronized = self.workload.batchnorm == "sync" and self.num_replicas > self.replicas_of_step
        logits, made = self.model.apply(
            tensors, images, drop_masks, training=training, axis_name=REPLICAS if synchronized else None
        )
        return logits.astype(self._dtype), made

    def _losses(
        self, parameters: Tensors, statistics: Tensors, rows: Rows, *, training: bool
    ) -> tuple[jax.Array, jax.Array, Tensors]:
        """Logits, the loss of each row, which is 0 for padding rows, and in training new running statistics."""
        logits, made = self._forward(parameters, statistics, rows.images, rows.drop_masks, training=training)
        losses = self.row_losses(logits, rows.labels, training=training)
        moved = {name: made[name][None] for name in statistics} if training else statistics
        return logits, losses * rows.weights, moved

    def evaluate_step(self, batch: DeviceBatch) -> jax.Array:
        self._set_training_mode(training=False)
        return self._evaluate(self._train_state, _rows(batch))

    def _evaluate_replica(self, train_state: TrainState, rows: Rows) -> jax.Array:
        num_replicas = self.replicas_of_step
        num_rows = len(rows.labels) // num_replicas
        at_once = self.rows_evaluated_at_once(num_rows)
        if at_once == num_rows:
            return self._evaluate_rows(train_state, rows)

        def in_parts(array: jax.Array) -> jax.Array:
            """With an axis of parts in front, each with some rows of every replica."""
            of_replicas = array.reshape(num_replicas, -1, at_once, *array.shape[1:]).swapaxes(0, 1)
            return of_replicas.reshape(-1, num_replicas * at_once, *array.shape[1:])

        return lax.map(partial(self._evaluate_rows, train_state), jax.tree.map(in_parts, rows)).sum(0)

    def _evaluate_rows(self, train_state: TrainState, rows: Rows) -> jax.Array:
        logits, losses, _ = self._losses(train_state.parameters, train_state.statistics, rows, training=False)
        hits = (logits.argmax(1) == rows.labels) * rows.weights
        return jnp.stack([self._sums_of_replicas(each) for each in (losses, hits, rows.weights)], axis=1)

    def logits(self, batch: DeviceBatch, *, training: bool) -> Array:
        self._set_training_mode(training=training)
        function = self._training_logits if training else self._evaluation_logits
        logits, statistics = function(self._train_state, _rows(batch))
        self._train_state = self._train_state._replace(statistics=statistics)
        return local_rows(logits)

    def _logits_replica(self, train_state: TrainState, rows: Rows, *, training: bool) -> tuple[jax.Array, Tensors]:
        logits, _, statistics = self._losses(train_state.parameters, train_state.statistics, rows, training=training)
        return logits, statistics

    def activations(self, batch: DeviceBatch) -> dict[str, Array]:
        self._set_training_mode(training=False)
        features = self._activations(self._train_state, _rows(batch))
        # A compiled function sorts what it returns by name.
        layers = dict.fromkeys(name.rpartition(".")[0] for name in self._names)
        return {name: local_rows(features[name]) for name in layers if name in features}

    def _activations_replica(self, train_state: TrainState, rows: Rows) -> dict[str, jax.Array]:
        return self._forward(train_state.parameters, train_state.statistics, rows.images, None, training=False)[1]

    def to_host(self, batch: DeviceBatch) -> dict[str, Array]:
        return {name: local_rows(array) for name, array in batch.arrays.items()}

    def _set_training_mode(self, *, training: bool) -> None:
        """Switch between training and evaluation, where the statistics of replica 0 hold for all."""
        if training == self._training:
            return
        self._training = training
        if not training and self.num_replicas > self.replicas_of_step and self._train_state.statistics:
            self._train_state = self._train_state._replace(
                statistics=self._broadcast_statistics(self._train_state.statistics)
            )

    def _copy_statistics_of_replica_0(self, statistics: Tensors) -> Tensors:
        is_first = lax.axis_index(REPLICAS) == 0
        return lax.psum(jax.tree.map(lambda value: jnp.where(is_first, value, 0), statistics), REPLICAS)

    def synchronize(self, *, drain: bool = False) -> None:
        jax.block_until_ready(self._train_state)

    def reset_peak_memory(self) -> None:
        """XLA's counter cannot be reset: what was tried out in the first steps counts."""

    def read(self, handles: Sequence[jax.Array]) -> npt.NDArray[np.float64]:
        return np.array([local_rows(handle).astype(np.float64).sum(0) for handle in handles])

    def state(self) -> TrainingState:
        self._set_training_mode(training=False)
        tensors = self._train_state.model_on_host()
        return TrainingState(
            model={name: tensors[name] for name in self._names},
            optimizer=self._train_state.slots_on_host(),
            step=self._step,
        )

    def load_state(self, state: TrainingState) -> None:
        if state.model.keys() != set(self._names):
            raise ValueError(
                f"state does not fit {self.workload.model}: missing {sorted(set(self._names) - state.model.keys())}, "
                f"unknown {sorted(state.model.keys() - set(self._names))}"
            )
        self._train_state = self._train_state.with_state(state, self.mesh, self.optimizer, self._dtype, self.of_step)
        self._step = state.step
        self._training = None

    def tensors_of_replicas(self) -> Iterator[tuple[str, Sequence[Array]]]:
        return self._train_state.copies_of_replicas()

    def first_grad_norm_sq(self) -> float | None:
        return self._train_state.first_grad_norm_sq() / self.num_replicas

    def counters(self) -> Counters:
        return Counters(
            optimizer_steps=int(local_rows(self._train_state.optimizer_steps).min()),
            images=int(local_rows(self._train_state.images_computed).sum()),
        )

    def barrier(self) -> None:
        """Nothing: one process has no other to wait for."""

    def teardown(self) -> None:
        """Nothing: one process leaves no other behind."""

    def profile(self, path: Path) -> AbstractContextManager[None]:
        # Here, since a JAX that moves what this needs must not break runs that keep no trace.
        from dpcompare.backends.jax.trace import chrome_trace

        return chrome_trace(path)

    def describe(self) -> Description:
        switches: Any = jax.config  # whose fields are made when JAX is imported
        description = replace(
            super().describe(),
            devices=runtime.device_names(self.config, self.mesh, self.process_rank),
            peak_device_memory_bytes=runtime.peak_device_memory_bytes(self.config, self.mesh),
            switches=switched(
                {
                    "compilation of JAX off": switches.jax_disable_jit,
                    "search for NaN of JAX on": switches.jax_debug_nans,
                    "64-bit types of JAX on": self.workload.precision != "float64" and switches.jax_enable_x64,
                }
            ),
            libraries=runtime.libraries(self.config),
        ).with_settings(memory_layout="NHWC", optimizer_kernels="XLA", compilation="XLA", tf32=runtime.takes_tf32())
        if self.config.cluster.device_type == "gpu":
            # What XLA tries out in the first step is in it, and is not tried where its cache has the compiled step.
            description = description.with_settings(peak_memory_counted=runtime.PEAK_OF_ALL_STEPS)
        if self.config.task == "probe":
            return description.with_settings(convolution_algorithms="fixed")
        return description


def _rows(batch: DeviceBatch) -> Rows:
    return Rows(batch.images, batch.labels, batch.weights, batch.drop_masks)
