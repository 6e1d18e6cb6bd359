"""Training in a loop of one's own: the batches, the modes and the arithmetic of a run, step by step."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from dpcompare.api.launchers import cluster_here, refuse_missing_launcher, show_devices
from dpcompare.api.own_parts import FrameworkOptimizer, Loss, named_model, own_parts
from dpcompare.backends import known_mode, load_backend
from dpcompare.backends.base import Backend, require_planned
from dpcompare.backends.custom_optimizer import CustomOptimizer
from dpcompare.backends.keras import compute_with
from dpcompare.config.cluster import Cluster
from dpcompare.config.modes import Mode
from dpcompare.config.run import RunConfig
from dpcompare.config.workload import Workload
from dpcompare.data.batches import DeviceBatch, HostBatch
from dpcompare.data.order import training_batches
from dpcompare.data.store import open_store
from dpcompare.errors import RequestError, require_type
from dpcompare.launch.inputs import prepare_inputs
from dpcompare.models.custom import CustomModel
from dpcompare.models.state import State, TrainingState
from dpcompare.objects import name_of
from dpcompare.system.type_names import FrameworkModel
from dpcompare.training.evaluated import evaluate
from dpcompare.training.schedule import learning_rate, training_reader

_loaded: set[str] = set()
"""The framework that this process trains with, once there is one."""


def backend(
    framework: str,
    mode: str = "single",
    workload: Workload | None = None,
    *,
    cluster: Cluster | None = None,
    model: str | CustomModel | Callable[[int, int], FrameworkModel] | None = None,
    dataset: Any = None,
    loss: Loss | None = None,
    optimizer: CustomOptimizer | Callable[..., FrameworkOptimizer] | None = None,
    own_weights: bool = False,
    tune: Mapping[str, str] | None = None,
) -> Training:
    """Train in a loop of your own with one mode of a framework; use what it returns in a `with` statement.

    Args:
        framework: `torch`, `tensorflow` or `jax`; a process can train with one of them.
        mode: such as `single` or `ddp`. Modes of several processes run one script in each, started by torchrun, with a
            TF_CONFIG, or by `run_script`.
        workload: what to train; default: `Workload()`.
        cluster: the devices; default: what the launcher's variables say, else all visible GPUs or, on a CPU, two
            simulated devices for a mode that can have several.
        model: in the place of `workload.model`: a name, a `CustomModel`, or a function from (image size in pixels,
            number of classes) to a model of the framework.
        dataset: in the place of `workload.dataset`: a name, or an object with a length, items (image, class index) and
            `class_names`, or a mapping of `train` and `validation` to two of them.
        loss: in the place of cross-entropy, from logits (rows, classes) and labels (rows,) to the loss of each row.
        optimizer: in the place of `workload.optimizer`: a `CustomOptimizer`, or a function that makes an optimizer of
            the framework; it gets the parameters in torch, the variables in TensorFlow, and nothing in JAX.
        own_weights: whether the model starts from the values that it was built with, instead of those that dpcompare
            draws from `workload.seed`, the same in all frameworks.
        tune: settings that change only the speed; `dpcompare modes --json` lists them.

    Raises:
        RequestError: it cannot be trained here, or this process trains with another framework already.
    """
    row = _row(framework, mode)
    workload = Workload() if workload is None else workload
    require_type(workload, Workload, "workload")
    changes: dict[str, Any] = {}
    if model is not None:
        changes["model"] = named_model(model, framework)
    if dataset is not None:
        changes["dataset"] = os.fspath(dataset) if isinstance(dataset, str | Path) else name_of(dataset, "dataset")
    workload = workload.changed(**changes) if changes else workload
    config = RunConfig(
        framework=framework,
        mode=mode,
        workload=workload,
        cluster=cluster or cluster_here(framework, mode, row),
        tune=dict(tune or {}),
    )
    refuse_missing_launcher(config)
    if optimizer is not None and "optimizer" in row.supported_values:
        raise RequestError(
            f"optimizer: received with {framework} {mode}, which trains with its own; expected another mode, or none"
        )
    if own_weights and config.launch == "coordinator" and config.topology.num_processes > 1:
        raise RequestError(
            f"own_weights: received with {framework} {mode}, where each process would start from values of its own; "
            "expected False"
        )
    if others := _loaded - {framework}:
        raise RequestError(
            f"framework: received {framework!r} in a process that trains with {', '.join(others)} already; expected "
            "one framework per process: start another process, or compare runs with dpcompare.compare"
        )
    is_object = model is not None and not isinstance(model, str)
    own = own_parts(is_object=is_object, own_weights=own_weights, loss=loss, optimizer=optimizer)
    show_devices(config)
    compute_with(framework)
    kind = load_backend(framework, mode)
    _loaded.add(framework)
    prepared = prepare_inputs(config, custom_shapes={} if is_object or own_weights else None)
    return Training((type(f"Own{kind.__name__}", (kind,), own) if own else kind)(prepared))


def batches(workload: Workload | None = None, *, steps: int | None = None) -> Iterator[HostBatch]:
    """The training batches of a workload as NumPy arrays, the same pixels in the same order as every mode trains on.

    No framework is imported.

    Args:
        workload: whose images, order, augmentation and batch size they are; default: `Workload()`.
        steps: how many; default: as many as the workload has.

    Yields:
        Global batches: `images` (rows, height, width, 3) in float32, normalised; `labels` (rows,); `weights` (rows,), 0
        for rows that only fill up the last batch of an epoch.

    Raises:
        RequestError: the dataset cannot be used as asked.
    """
    # The mode is of no account: any run of the workload has this input.
    workload = Workload() if workload is None else workload
    require_type(workload, Workload, "workload")
    workload = workload.changed(model="mlp", accumulate=1)
    config = RunConfig(
        framework="torch", mode="single", workload=workload, cluster=Cluster.partition(1, 1, device="cpu")
    )
    prepared = prepare_inputs(config)
    split = open_store(prepared.inputs.store).split("train")
    reader = training_reader(workload, split, prepared.drops, data_parallel_rank=0, data_parallel_size=1)
    count = workload.total_steps(len(split)) if steps is None else _positive(steps, "steps")
    return reader.read(training_batches(len(split), workload.global_batch_size, seed=workload.seed, num_steps=count))


@dataclass(frozen=True, kw_only=True)
class Batch:
    """This process's part of a global batch, on its devices."""

    step: int
    """From 1."""
    count: int
    """Samples of the global batch; the sum of losses over all processes is divided by it."""
    micro_batches: tuple[DeviceBatch, ...]
    """One, or as many as `workload.accumulate`; each with the framework's `images`, `labels` and `weights`."""


class LossHandle:
    """The loss of a step. The device computes it while the loop goes on; `float()` waits for it."""

    def __init__(self, training: Training, handle: Any, count: float) -> None:
        self._training = training
        self._handle = handle
        self._count = count

    @cached_property
    def _value(self) -> float:
        return float(self._training.backend.read([self._handle])[0]) / self._count

    def __float__(self) -> float:
        return self._value

    def __format__(self, specification: str) -> str:
        return format(self._value, specification)

    def __repr__(self) -> str:
        return f"{self._value!r}"


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """An evaluation of this process's part of the validation split; add those of all processes up for the whole."""

    loss_sum: float
    correct: int
    count: int
    """Samples."""

    @property
    def loss(self) -> float:
        """The mean over these samples; NaN if there are none, as on a process whose part is padding alone."""
        return self.loss_sum / self.count if self.count else math.nan

    @property
    def accuracy(self) -> float:
        """The fraction that is classified correctly; NaN if there are no samples."""
        return self.correct / self.count if self.count else math.nan

    def __add__(self, other: Evaluation) -> Evaluation:
        return Evaluation(
            loss_sum=self.loss_sum + other.loss_sum,
            correct=self.correct + other.correct,
            count=self.count + other.count,
        )


class Training:
    """A model on its devices, with its optimizer and its data; `backend` makes it."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        """The interface below, see `dpcompare.backends.base.Backend`."""
        self.workload = backend.workload
        self.losses: list[LossHandle] = []
        """The losses of the steps so far."""
        self._state = "new"
        self._step = 0
        self._store = open_store(backend.inputs.store)
        self._initial: State | None = None

    def __enter__(self) -> Self:
        if self._state != "new":
            raise RequestError("this training was entered before; expected a new one: call dpcompare.backend again")
        self.backend.setup()
        require_planned(self.backend, self.backend.process_rank)
        self._state = "open"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state = "closed"
        if kind is None:  # other processes may wait for one that failed, and must not be waited for
            self.backend.teardown()

    @property
    def process_rank(self) -> int:
        """Rank of this process among all of the training, from 0."""
        return self._open.process_rank

    @property
    def num_replicas(self) -> int:
        """Copies of the model that train, over all processes."""
        return self._open.num_replicas

    @property
    def num_steps(self) -> int:
        """Steps that the workload has."""
        return self.workload.total_steps(len(self._store.split("train")))

    @property
    def _open(self) -> Backend:
        if self._state != "open":
            when = "before its `with` statement" if self._state == "new" else "after the end of its `with` statement"
            raise RequestError(
                f"this training is used {when}; expected: with dpcompare.backend(...) as training, and its use within"
            )
        return self.backend

    def batches(self, steps: int | None = None) -> Iterator[Batch]:
        """This process's part of the next global batches, read and placed ahead of their use.

        Args:
            steps: how many; default: as many as the workload has left.
        """
        backend, split, workload = self._open, self._store.split("train"), self.workload
        if self._initial is None:  # all processes must ask for it, and the first one keeps it
            initial = backend.state().model
            self._initial = initial if backend.process_rank == 0 else {}
        first = self._step
        count = self.num_steps - first if steps is None else _positive(steps, "steps")
        reader = training_reader(workload, split, backend.config.drops, **self._place, accumulate=workload.accumulate)
        order = training_batches(
            len(split), workload.global_batch_size, seed=workload.seed, num_steps=first + max(count, 0)
        )
        feed = backend.prefetch_to_device(reader.batch_loaders(islice(order, first, None)))
        for step in range(first + 1, first + count + 1):
            micro_batches = tuple(islice(feed, self._open.workload.accumulate))  # refused after the end
            yield Batch(step=step, count=micro_batches[0].global_count, micro_batches=micro_batches)

    def step(self, batch: Batch, lr: float | None = None) -> LossHandle:
        """Make one optimizer step; all processes must.

        Args:
            batch: of `batches`.
            lr: the learning rate; default: that of the workload's schedule at this step.

        Returns:
            This process's share of the loss: the mean over the processes is the mean loss over the global batch.

        Raises:
            RequestError: the learning rate is none, or the workload has none for this step, since it has no more.
        """
        backend = self._open
        require_type(batch, Batch, "batch")
        if lr is not None and (isinstance(lr, bool) or not isinstance(lr, Real) or not math.isfinite(lr)):
            raise RequestError(f"lr: received {lr!r}, expected a learning rate: a finite number, or None")
        if lr is None and self._step >= self.num_steps:
            raise RequestError(
                f"lr: received None at step {self._step + 1} of a workload that has {self.num_steps}; expected "
                "a learning rate, or a workload with more steps"
            )
        rate = learning_rate(self.workload, self._step, self.num_steps) if lr is None else float(lr)
        handle = backend.train_step(batch.micro_batches, rate)
        self._step += 1
        if self._step % backend.config.window == 0:  # or the host would fill the device with batches
            backend.synchronize()
        loss = LossHandle(self, handle, batch.count / backend.data_parallel_size)
        self.losses.append(loss)
        return loss

    def evaluate(self) -> Evaluation:
        """Evaluate this process's part of the validation split; all processes must."""
        backend, split = self._open, self._store.split("validation")
        loss_sum, correct, count = evaluate(backend, self._store.split("train"), split).sum(axis=0)
        return Evaluation(loss_sum=float(loss_sum), correct=int(correct), count=int(count))

    def state(self) -> TrainingState:
        """Model and optimizer on the host, by names that all frameworks share; all processes must call it."""
        return self._open.state()

    def load_state(self, state: TrainingState) -> None:
        """Continue from a `state`, also from one of another framework or mode; all processes must call it.

        Raises:
            ValueError: it is the state of another model.
        """
        self._open.load_state(state)
        self._step = state.step
        del self.losses[state.step :]

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write what this training computed, for `verify_saved`; all processes must call it.

        Args:
            folder: new, or that of the other processes of this training.
            overwrite: whether it may take the place of another training that was saved there.

        Raises:
            RequestError: no step was made, there is another training, or nothing can be written there.
        """
        from dpcompare.api.saved import remove, save

        backend = self._open
        initial = self._initial if self._initial is not None else backend.state().model
        losses = np.array([float(loss) for loss in self.losses])
        if overwrite:
            remove(Path(folder), backend)
        save(Path(folder), backend, losses=losses, initial=initial, trained=self.state().model)

    @property
    def _place(self) -> dict[str, int]:
        backend = self.backend
        return {
            "data_parallel_rank": backend.data_parallel_rank,
            "data_parallel_size": backend.data_parallel_size,
            "replicas_per_process": backend.config.topology.replicas_per_process,
        }


def _positive(steps: int, name: str) -> int:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise RequestError(f"{name}: received {steps!r}, expected a whole number of at least 1")
    return steps


def _row(framework: str, mode: str) -> Mode:
    if ":" in str(framework):
        first, _, second = str(framework).partition(":")
        raise RequestError(f"framework: received {framework!r}, expected two arguments: backend({first!r}, {second!r})")
    row = known_mode(framework, mode)
    if row.roles:
        raise RequestError(
            f"mode: received {mode!r}, some of whose processes only serve others; expected a mode whose processes all "
            "train, or dpcompare.run"
        )
    return row
