"""The part of a backend that all JAX modes share: model, data, one training step, one evaluation step."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt
from jax import lax
from jax import numpy as jnp
from jax._src import xla_bridge
from jax.sharding import Mesh

from dpcompare.backends.base import Counted, Inspectable
from dpcompare.backends.cuda_wheels import driver_version
from dpcompare.backends.description import Description
from dpcompare.backends.jax.arrays import (
    EVERYWHERE,
    REPLICAS,
    SPLIT,
    everywhere,
    local_rows,
    mesh_of_replicas,
    on_host,
    split,
)
from dpcompare.backends.jax.loss import cross_entropies
from dpcompare.backends.jax.model import Model, build_model
from dpcompare.backends.jax.optimizer import KERNELS, Optimizer
from dpcompare.backends.jax.pixels import look_up
from dpcompare.backends.update_rules import UpdateRules
from dpcompare.config.optimizers import FIRST_MOMENTS
from dpcompare.data.batches import DeviceBatch, HostBatch, HostRead, prefetch
from dpcompare.errors import RequestError
from dpcompare.models.sealed import read_weights
from dpcompare.models.state import State, TrainingState, is_statistic
from dpcompare.system.cache import cache_dir
from dpcompare.system.terminal_text import counted

COMPILED = "/jax/core/compile/backend_compile_duration"
"""JAX's event of a function that was compiled, or found in the cache of those that were."""

Tensors = Mapping[str, jax.Array]


class Trained(NamedTuple):
    """What a training step replaces. Where replicas differ, tensors have an axis of replicas in front."""

    parameters: Tensors
    slots: Mapping[str, Tensors]
    """Slot of the optimizer -> parameter -> what it remembers."""
    statistics: Tensors
    """BatchNorm's, of each replica."""
    optimizer_steps: jax.Array
    """Counted by each replica, as are the images whose losses it has computed."""
    images_computed: jax.Array


WHERE: dict[str, Any] = {
    "parameters": EVERYWHERE,
    "slots": EVERYWHERE,
    "statistics": SPLIT,
    "optimizer_steps": SPLIT,
    "images_computed": SPLIT,
}
SPECS = Trained(**WHERE)
"""Of each of them, where it is."""


class Rows(NamedTuple):
    """A micro-batch of one replica."""

    images: jax.Array
    labels: jax.Array
    weights: jax.Array
    drop_masks: jax.Array | None


class JaxBackend(Inspectable):
    """One process with the replicas on its devices; the modes say how processes meet.

    A step is one compiled function of what was trained so far, which it replaces.
    """

    packages = ("jax", "jaxlib")

    model: Model
    mesh: Mesh
    """The devices of all replicas, in the order of the processes."""

    def connect(self) -> None:
        """Join the other processes; called before JAX looks for devices."""

    def build_model(self) -> Model:
        """The model to train; override it together with `initial_state` to train another."""
        by_shifts = self.config.tuning["depthwise_convolution"] == "shifts"
        return build_model(self.workload, self.inputs.num_classes, depthwise_as_shifts=by_shifts)

    def initial_state(self) -> State | None:
        """The model's tensors to start from: the file that all backends share. None takes those of `Model.init`."""
        return read_weights(self.inputs.weights)

    def row_losses(self, logits: jax.Array, labels: jax.Array, *, training: bool) -> jax.Array:
        """The loss of each row, from logits (rows, classes) and labels (rows,); override it to train with another.

        It is traced. Their sum over the global batch is divided by its number of samples. What is returned for padding
        is ignored, if it is finite.
        """
        return cross_entropies(labels, logits, self.workload.label_smoothing if training else 0.0)

    def build_optimizer(self) -> Optimizer:
        """What updates the parameters; override it to train with another."""
        return KERNELS[self.workload.optimizer](UpdateRules.of(self.workload))

    def setup(self) -> None:
        self._training: bool | None = None
        self._step = 0
        self._configure_devices()
        self._configure_precision()
        self.connect()
        self.process_rank, self.num_processes = jax.process_index(), jax.process_count()
        self.num_replicas = jax.device_count()
        self._check_devices()
        self.mesh = mesh_of_replicas()
        # At their first collective gloo has processes wait 30 s for each other, and one may compile for longer.
        self.barrier()
        self._build()
        self._make_functions()
        self._count_compilations()

    def _configure_devices(self) -> None:
        if xla_bridge.backends_are_initialized():
            raise RequestError(
                "JAX has been used in this process already, which fixes its devices and its precision; expected a "
                "process in which no array was made: make them inside functions, not where a module is imported"
            )
        topology = self.config.topology
        on_gpu = self.config.cluster.device_type == "gpu"
        jax.config.update("jax_platforms", "cuda" if on_gpu else "cpu")  # without a GPU it then refuses
        if on_gpu:
            os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        else:
            os.environ["NPROC"] = str(topology.threads_per_process)  # nothing else tells XLA how many threads to start
            jax.config.update("jax_num_cpu_devices", topology.replicas_per_process)
        jax.config.update("jax_compilation_cache_dir", str(cache_dir() / "compiled" / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
        jax.config.update("jax_persistent_cache_enable_xla_caches", "none")  # their paths would be part of the keys

    def _configure_precision(self) -> None:
        jax.config.update("jax_enable_x64", self.workload.precision == "float64")
        # JAX's own default is TF32, on the GPUs that have it.
        jax.config.update("jax_default_matmul_precision", "default" if self.config.allows_tf32 else "highest")
        self._dtype = np.dtype("float64" if self.workload.precision == "float64" else "float32")

    def _check_devices(self) -> None:
        planned = self.config.topology.replicas_per_process
        if (found := jax.local_device_count()) != planned:
            raise RuntimeError(
                f"JAX sees {counted(found, 'device')}, the plan gives this process {planned}; its own message is above"
            )

    def _build(self) -> None:
        """The model, its optimizer, and what both start from."""
        self.model = self.build_model()
        self.optimizer = self.build_optimizer()
        initial = self.initial_state()
        initial = {name: np.asarray(array) for name, array in (initial or self.model.init()).items()}
        self._names = list(initial)
        zeros = np.zeros(self.config.topology.replicas_per_process, np.int32)
        self._trained = Trained({}, {}, {}, split(self.mesh, zeros), split(self.mesh, zeros))
        self.load_state(TrainingState(model=initial, optimizer={}, step=0))

    def _make_functions(self) -> None:
        """The steps as compiled functions, which JAX traces and compiles when they are first called."""
        replaced = (0,) if self.config.tuning["donation"] == "on" else ()
        function = self._over_replicas
        self._train = function(
            self._train_replica, (SPECS, SPLIT, EVERYWHERE, EVERYWHERE), (SPECS, SPLIT), donated=replaced
        )
        self._accumulate = function(
            self._accumulate_replica, (SPLIT, SPECS, SPLIT, EVERYWHERE), (SPLIT, SPECS), donated=replaced
        )
        self._no_sums = function(self._no_sums_replica, (SPECS,), SPLIT)
        self._apply = function(self._apply_replica, (SPECS, SPLIT, EVERYWHERE), SPECS, donated=replaced)
        self._evaluate = function(self._evaluate_replica, (SPECS, SPLIT), SPLIT)
        self._training_logits, self._evaluation_logits = (
            function(partial(self._logits_replica, training=training), (SPECS, SPLIT), (SPLIT, SPLIT))
            for training in (True, False)
        )
        self._activations = function(self._activations_replica, (SPECS, SPLIT), SPLIT)
        self._broadcast_statistics = function(self._copy_statistics_of_replica_0, (SPLIT,), SPLIT)
        self._look_up = {
            rows: function(look_up, (SPLIT, SPLIT if rows == "each" else EVERYWHERE, SPLIT), SPLIT)
            for rows in ("each", "all")
        }

    def _over_replicas(
        self, function: Callable[..., Any], inputs: Any, outputs: Any, *, donated: tuple[int, ...] = ()
    ) -> Any:
        """A function that every replica computes with its parts of the arguments; those `donated` are used up."""
        # check_vma: with it JAX itself sums gradients over replicas, and they could not be left without gradient sync.
        mapped = jax.shard_map(function, mesh=self.mesh, in_specs=inputs, out_specs=outputs, check_vma=False)
        return jax.jit(mapped, donate_argnums=donated, compiler_options=self._compiler_options())

    def _compiler_options(self) -> dict[str, bool] | None:
        """XLA's flags that are asked for; one that is passed here, even as False, overrules the user's XLA_FLAGS."""
        if self.config.cluster.device_type != "gpu":
            return None
        options = {
            # What is compared must not depend on which algorithm was fastest, or on the order in which threads add up.
            "xla_gpu_deterministic_ops": self.config.task == "probe",
            "xla_gpu_enable_latency_hiding_scheduler": self.config.tuning.get("scheduler") == "latency-hiding",
        }
        return {name: True for name, asked in options.items() if asked} or None

    def _count_compilations(self) -> None:
        steps = (self._train, self._no_sums, self._accumulate, self._apply)
        names = {f"jit({function.__name__})" for function in steps}
        self._num_compilations = 0

        def heard(event: str, seconds: float, **about: Any) -> None:
            if event == COMPILED and about.get("fun_name") in names:
                self._num_compilations += 1

        jax.monitoring.register_event_duration_secs_listener(heard)

    @property
    def num_compilations(self) -> int:
        return self._num_compilations

    def feed(self, reads: Iterable[HostRead]) -> Iterator[DeviceBatch]:
        return prefetch(reads, lambda read: self._to_device(read()), self.input_threads)

    def _to_device(self, batch: HostBatch) -> DeviceBatch:
        return DeviceBatch(
            images=self._images(batch),
            labels=split(self.mesh, batch.labels),
            weights=split(self.mesh, batch.weights.astype(self._dtype, copy=False)),
            global_count=batch.global_count,
            drop_masks=None
            if batch.drop_masks is None
            else split(self.mesh, batch.drop_masks.astype(self._dtype, copy=False)),
        )

    def _images(self, batch: HostBatch) -> jax.Array:
        """The images: bytes that each GPU looks up, or what the host has looked up."""
        if self.config.cluster.device_type != "gpu":
            return split(self.mesh, batch.images.astype(self._dtype, copy=False))
        tables = batch.tables.astype(self._dtype, copy=False)
        flips = None if batch.flips is None else split(self.mesh, batch.flips)
        if len(tables) > 1:
            return self._look_up["each"](split(self.mesh, batch.pixels), split(self.mesh, tables), flips)
        return self._look_up["all"](split(self.mesh, batch.pixels), everywhere(self.mesh, tables), flips)

    def train_step(self, batches: Sequence[DeviceBatch], learning_rate: float) -> Any:
        self._enter(training=True)
        self._step += 1
        constants = np.array(self.optimizer.step_constants(self._step, learning_rate), self._dtype)
        counts = [np.asarray(batch.global_count, self._dtype) for batch in batches]
        if len(batches) == 1:
            self._trained, loss_sum = self._train(self._trained, _rows(batches[0]), counts[0], constants)
            return loss_sum
        sums = self._no_sums(self._trained)
        for batch, count in zip(batches, counts, strict=True):
            sums, self._trained = self._accumulate(sums, self._trained, _rows(batch), count)
        gradient_sums, loss_sum = sums
        self._trained = self._apply(self._trained, gradient_sums, constants)
        return loss_sum

    def _train_replica(
        self, trained: Trained, rows: Rows, count: jax.Array, constants: jax.Array
    ) -> tuple[Trained, jax.Array]:
        loss_sum, gradients, trained = self._gradients(trained, rows, count)
        return self._update(trained, gradients, constants), loss_sum[None]

    def _no_sums_replica(self, trained: Trained) -> tuple[Tensors, jax.Array]:
        """What micro-batches are added to: a gradient and a sum of losses of each replica."""
        zeros = {name: jnp.zeros_like(parameter)[None] for name, parameter in trained.parameters.items()}
        return zeros, jnp.zeros(1, self._dtype)

    def _accumulate_replica(
        self, sums: tuple[Tensors, jax.Array], trained: Trained, rows: Rows, count: jax.Array
    ) -> tuple[tuple[Tensors, jax.Array], Trained]:
        gradient_sums, total = sums
        loss_sum, gradients, trained = self._gradients(trained, rows, count)
        gradient_sums = {name: value + gradients[name][None] for name, value in gradient_sums.items()}
        return (gradient_sums, total + loss_sum[None]), trained

    def _apply_replica(self, trained: Trained, gradient_sums: Tensors, constants: jax.Array) -> Trained:
        return self._update(trained, {name: value[0] for name, value in gradient_sums.items()}, constants)

    def _gradients(self, trained: Trained, rows: Rows, count: jax.Array) -> tuple[jax.Array, Tensors, Trained]:
        """This replica's sum of losses, its part of the gradient of the mean over the global batch, and what moved."""

        def loss(parameters: Tensors) -> tuple[jax.Array, tuple[jax.Array, Tensors]]:
            _, losses, statistics = self._losses(parameters, trained.statistics, rows, training=True)
            loss_sum = losses.sum()
            return loss_sum / count, (loss_sum, statistics)

        gradients, (loss_sum, statistics) = jax.grad(loss, has_aux=True)(trained.parameters)
        images = trained.images_computed + rows.weights.sum().astype(np.int32)
        return loss_sum, gradients, trained._replace(statistics=statistics, images_computed=images)

    def _update(self, trained: Trained, gradients: Tensors, constants: jax.Array) -> Trained:
        """Sum the gradients of all replicas and update this replica's copy of the parameters."""
        if self.num_replicas > 1 and self.config.sync_gradients:
            gradients = lax.psum(gradients, REPLICAS)
        parameters, slots = self.optimizer.apply(trained.parameters, gradients, trained.slots, constants)
        return trained._replace(parameters=parameters, slots=slots, optimizer_steps=trained.optimizer_steps + 1)

    def _forward(
        self,
        parameters: Tensors,
        statistics: Tensors,
        images: jax.Array,
        drop_masks: jax.Array | None,
        *,
        training: bool,
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The logits of a replica's rows, and what else the model made."""
        tensors = {**parameters, **{name: value[0] for name, value in statistics.items()}}
        synchronized = self.workload.batchnorm == "sync" and self.num_replicas > 1
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

    def evaluate_step(self, batch: DeviceBatch) -> Any:
        self._enter(training=False)
        return self._evaluate(self._trained, _rows(batch))

    def _evaluate_replica(self, trained: Trained, rows: Rows) -> jax.Array:
        num_rows = len(rows.labels)
        at_once = self.rows_evaluated_at_once(num_rows)
        if at_once == num_rows:
            return self._evaluate_rows(trained, rows)[None]
        parts = jax.tree.map(lambda each: each.reshape(-1, at_once, *each.shape[1:]), rows)
        return lax.map(partial(self._evaluate_rows, trained), parts).sum(0)[None]

    def _evaluate_rows(self, trained: Trained, rows: Rows) -> jax.Array:
        logits, losses, _ = self._losses(trained.parameters, trained.statistics, rows, training=False)
        hits = (logits.argmax(1) == rows.labels) * rows.weights
        return jnp.stack([losses.sum(), hits.sum(), rows.weights.sum()])

    def logits(self, batch: DeviceBatch, *, training: bool) -> npt.NDArray[Any]:
        self._enter(training=training)
        function = self._training_logits if training else self._evaluation_logits
        logits, statistics = function(self._trained, _rows(batch))
        self._trained = self._trained._replace(statistics=statistics)
        return local_rows(logits)

    def _logits_replica(self, trained: Trained, rows: Rows, *, training: bool) -> tuple[jax.Array, Tensors]:
        logits, _, statistics = self._losses(trained.parameters, trained.statistics, rows, training=training)
        return logits, statistics

    def activations(self, batch: DeviceBatch) -> dict[str, npt.NDArray[Any]]:
        self._enter(training=False)
        features = self._activations(self._trained, _rows(batch))
        # A compiled function sorts what it returns by name.
        layers = dict.fromkeys(name.rpartition(".")[0] for name in self._names)
        return {name: local_rows(features[name]) for name in layers if name in features}

    def _activations_replica(self, trained: Trained, rows: Rows) -> dict[str, jax.Array]:
        return self._forward(trained.parameters, trained.statistics, rows.images, None, training=False)[1]

    def to_host(self, batch: DeviceBatch) -> dict[str, npt.NDArray[Any]]:
        arrays = {"images": batch.images, "labels": batch.labels, "weights": batch.weights}
        if batch.drop_masks is not None:
            arrays["drop_masks"] = batch.drop_masks
        return {name: local_rows(array) for name, array in arrays.items()}

    def _enter(self, *, training: bool) -> None:
        """Switch between training and evaluation, where the statistics of replica 0 hold for all."""
        if training == self._training:
            return
        self._training = training
        if not training and self.num_replicas > 1 and self._trained.statistics:
            self._trained = self._trained._replace(statistics=self._broadcast_statistics(self._trained.statistics))

    def _copy_statistics_of_replica_0(self, statistics: Tensors) -> Tensors:
        is_first = lax.axis_index(REPLICAS) == 0
        return lax.psum(jax.tree.map(lambda value: jnp.where(is_first, value, 0), statistics), REPLICAS)

    def synchronize(self, *, drain: bool = False) -> None:
        jax.block_until_ready(self._trained)

    def reset_peak_memory(self) -> None:
        """XLA's counter cannot be reset: what was tried out in the first steps counts."""

    def read(self, handles: Sequence[jax.Array]) -> npt.NDArray[np.float64]:
        return np.array([local_rows(handle).astype(np.float64).sum(0) for handle in handles])

    def state(self) -> TrainingState:
        self._enter(training=False)
        trained = self._trained
        tensors = {name: on_host(value) for name, value in trained.parameters.items()}
        tensors |= {name: on_host(value)[0] for name, value in trained.statistics.items()}
        return TrainingState(
            model={name: tensors[name] for name in self._names},
            optimizer={
                f"{slot}.{name}": on_host(value)
                for slot, values in trained.slots.items()
                for name, value in values.items()
            },
            step=self._step,
        )

    def load_state(self, state: TrainingState) -> None:
        if state.model.keys() != set(self._names):
            raise ValueError(
                f"state does not fit {self.workload.model}: missing {sorted(set(self._names) - state.model.keys())}, "
                f"unknown {sorted(state.model.keys() - set(self._names))}"
            )
        tensors = {name: value.astype(self._dtype) for name, value in state.model.items()}
        parameters = {name: value for name, value in tensors.items() if not is_statistic(name)}
        statistics = {name: value for name, value in tensors.items() if is_statistic(name)}
        # torch makes its slots in the first step.
        slots = state.optimizer if state.step else self._empty_slots(parameters)
        num_local = self.config.topology.replicas_per_process
        self._trained = self._trained._replace(
            parameters={name: everywhere(self.mesh, value) for name, value in parameters.items()},
            slots={
                slot: {name: everywhere(self.mesh, slots[f"{slot}.{name}"].astype(self._dtype)) for name in parameters}
                for slot in self.optimizer.slots
            },
            statistics={name: split(self.mesh, np.stack([value] * num_local)) for name, value in statistics.items()},
        )
        self._step = state.step
        self._training = None

    def _empty_slots(self, parameters: State) -> State:
        return {
            f"{slot}.{name}": np.zeros_like(value)
            for slot in self.optimizer.slots
            for name, value in parameters.items()
        }

    def first_gradient_squares(self) -> float | None:
        copies = [
            np.asarray(copy.data).astype(np.float64) / FIRST_MOMENTS[slot]
            for slot, values in self._trained.slots.items()
            if slot in FIRST_MOMENTS
            for value in values.values()
            for copy in value.addressable_shards
        ]
        return float(sum(np.square(copy).sum() for copy in copies)) / self.num_replicas

    def counted(self) -> Counted:
        return Counted(
            optimizer_steps=int(local_rows(self._trained.optimizer_steps).min()),
            images=int(local_rows(self._trained.images_computed).sum()),
        )

    def barrier(self) -> None:
        """One process waits for nobody."""

    def teardown(self) -> None:
        """One process leaves nobody behind."""

    def profile(self, path: Path) -> AbstractContextManager[None]:
        # Here, since a JAX that moves what this needs must not break runs that keep no trace.
        from dpcompare.backends.jax.trace import chrome_trace

        return chrome_trace(path)

    def describe(self) -> Description:
        description = replace(
            super().describe(),
            devices=self._device_names(),
            peak_device_memory_bytes=self._peak_device_memory_bytes(),
            libraries=self._libraries(),
        ).with_settings(memory_layout="NHWC", optimizer_kernels="XLA", compilation="XLA", tf32=_takes_tf32())
        if self.config.cluster.device_type == "gpu":
            # What XLA tries out in the first step is in it, and is not tried where its cache has the compiled step.
            description = description.with_settings(peak_memory_counted=PEAK_OF_ALL_STEPS)
        if self.config.task == "probe":
            return description.with_settings(convolution_algorithms="fixed")
        return description

    def _libraries(self) -> dict[str, str]:
        if self.config.cluster.device_type != "gpu":
            return {}
        found = {name: _version(*distributions) for name, distributions in CUDA_DISTRIBUTIONS.items()}
        found["driver"] = driver_version()
        return {name: version for name, version in found.items() if version}

    def _device_names(self) -> list[str]:
        if self.config.cluster.device_type == "cpu":
            return list(self.config.cluster.nodes[self.process_rank].devices)
        return [device.device_kind for device in self.mesh.local_devices]

    def _peak_device_memory_bytes(self) -> int | None:
        if self.config.cluster.device_type != "gpu":
            return None
        # None, or without this key, where an allocator keeps no statistics (XLA_PYTHON_CLIENT_ALLOCATOR=platform).
        peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in self.mesh.local_devices]
        known = [peak for peak in peaks if peak is not None]
        return sum(known) if len(known) == len(peaks) else None


PEAK_OF_ALL_STEPS = "from the start, with XLA's trials unless its cache was warm"
"""What the peak of device memory is of here; in the other frameworks it is of the measured steps."""


def _rows(batch: DeviceBatch) -> Rows:
    return Rows(batch.images, batch.labels, batch.weights, batch.drop_masks)


CUDA_DISTRIBUTIONS = {
    "cuda": ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"),
    "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
}
"""Library -> the distributions that may bring it."""


def _version(*distributions: str) -> str | None:
    """Of the first distribution that is installed."""
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _takes_tf32() -> bool:
    """Read back, since a variable of CUDA's overrules JAX's own setting."""
    overruled = os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"
    return jax.config.jax_default_matmul_precision != "highest" and not overruled
