"""The interface of a backend: what the training loop calls, and apart from it what only verification looks at."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dpcompare.backends.description import Description, description_of
from dpcompare.config.run import RunConfig
from dpcompare.data.batches import BatchLoader, DeviceBatch
from dpcompare.errors import RequestError
from dpcompare.models.state import TrainingState
from dpcompare.system.type_names import Array

Handle: TypeAlias = Any
"""What a step gives before its device has computed it; `Backend.read` makes numbers of it."""


class Counters(NamedTuple):
    """What a process has counted where it happened, since `Backend.setup`; None where that cannot be counted."""

    optimizer_steps: int | None
    """Updates that its optimizer has made."""
    images: int | None
    """Samples of this process whose losses were computed for training; rows of padding are none."""


class Backend(ABC):
    """One framework's way of training on several devices; it reads no clock and writes no result.

    A backend writes the eleven abstract methods. The others have a default, which for what is only looked at means that
    it is not known: the fairness sheet says so.

    Order of use, the same in every process:

    1. `setup`, after which the ranks and counts below hold. Processes that are not in `Topology.trainers` only serve,
       and wait for `teardown`.
    2. `load_state` where training resumes.
    3. Any number of `train_step`, now and then a `synchronize`, after which `seconds_between_steps` is of the steps
       before it, and of `evaluate_step`, which takes `rows_evaluated_at_once`, on batches that came through
       `prefetch_to_device`; `read` turns what they return into numbers.
       `logits` recomputes BatchNorm's statistics before an evaluation.
    4. In between, `state`, `load_state` and `barrier` for a checkpoint, `profile` around steps to trace,
       `reset_peak_memory` before the first step that counts, `to_host` for batches that a step has had,
       `tensors_of_replicas`, and `first_grad_norm_sq` after the very first one.
    5. `describe` and `counters` once training is done, then `teardown`.
    """

    process_rank: int = 0
    """Rank of this process among `num_processes`, from 0."""
    num_processes: int = 1
    num_replicas: int = 1
    """Replicas over all processes, as the framework itself counts them after `setup`."""

    packages: ClassVar[tuple[str, ...]]
    """Modules whose versions belong in every result."""

    def __init__(self, config: RunConfig) -> None:
        """Args:
        config: a run whose inputs are prepared.

        Raises:
            RequestError: they are not.
        """
        self.config = config.prepared()
        self.workload = config.workload
        self.inputs = self.config.inputs

    @property
    def data_parallel_rank(self) -> int:
        """Which part of every global batch this process reads, from 0; processes of one replica read the same."""
        return self.process_rank

    @property
    def data_parallel_size(self) -> int:
        """Parts into which a global batch is divided among the processes."""
        return self.num_processes

    @property
    def input_threads(self) -> int:
        """Threads that read this process's batches: as many for each replica in every mode."""
        return self.config.input_threads * max(1, self.config.topology.num_replicas // self.data_parallel_size)

    def _seed_of_own_draws(self, step: int, *generator: int) -> int:
        """A seed of 32 bits for what layers of a user draw from in a framework, so that runs with one seed repeat.

        Args:
            step: after which they draw.
            generator: which of several it is, as numbers.
        """
        entropy = [self.workload.seed, 3, step, *generator]  # 0 to 2: weights, order, augmentations
        return int(np.random.SeedSequence(entropy).generate_state(1)[0])

    @property
    def rows_trained_at_once(self) -> int:
        """Rows of a micro-batch on each replica."""
        return self.workload.global_batch_size // (self.config.topology.num_replicas * self.workload.accumulate)

    def rows_evaluated_at_once(self, rows: int) -> int:
        """Rows that a device evaluates at once: on a GPU no more than a replica trains with, since more may not fit."""
        return rows if self.config.cluster.device_type == "cpu" else min(rows, self.rows_trained_at_once)

    @property
    def num_compilations(self) -> int:
        """How often this process has traced or compiled what it trains with, by the framework's own counter.

        All steps have the same shapes, so it grows in the first one alone. 0 where nothing is traced or compiled.
        """
        return 0

    @abstractmethod
    def setup(self) -> None:
        """Join the other processes and build the model, from the shared initial weights, and its optimizer."""

    @abstractmethod
    def prefetch_to_device(self, batch_loaders: Iterable[BatchLoader]) -> Iterator[DeviceBatch]:
        """This process's batches on its devices, read and placed ahead of their use by `input_threads` threads."""

    @abstractmethod
    def train_step(self, batches: Sequence[DeviceBatch], learning_rate: float) -> Handle:
        """One optimizer step on the micro-batches of a global batch.

        Returns a handle of the sum of the losses of this process's samples; never waits for the device.
        """

    @abstractmethod
    def evaluate_step(self, batch: DeviceBatch) -> Handle:
        """Returns a handle of (sum of losses, correct, count) over this process's samples."""

    @abstractmethod
    def logits(self, batch: DeviceBatch, *, training: bool) -> Array:
        """The model's output for this process's rows, (rows, classes).

        With `training`, BatchNorm normalises by the batch and updates its running statistics; all processes must call
        it.
        """

    @abstractmethod
    def read(self, handles: Sequence[Handle]) -> npt.NDArray[np.float64]:
        """The values of several handles at once: one row per handle."""

    def to_host(self, batch: DeviceBatch) -> dict[str, Array] | None:
        """images, labels, weights and any drop masks of this process's rows, read back from its devices.

        In the layout of a HostBatch. Of processes that have the same rows, only one returns them. None: that is not
        known.
        """
        return None

    def tensors_of_replicas(self) -> Iterator[tuple[str, Sequence[Array]]]:
        """Each parameter and what the optimizer remembers of it, by its name in a TrainingState, read from the devices.

        As each replica of this process has it; a single array where several share one. One after another, since all
        copies together may not fit; all processes must read to the end, since a tensor may have to be gathered.
        Nothing: that is not known.
        """
        return iter(())

    def first_grad_norm_sq(self) -> float | None:
        """This process's share of the sum of squares of the synchronized gradient, after the first step.

        From what the optimizer remembers, so it is the gradient that was used for the update. The shares of all
        processes add up to the whole; None: that is not known.
        """
        return None

    def counters(self) -> Counters:
        """What this process has counted by itself; waits for the device."""
        return Counters(optimizer_steps=None, images=None)

    @abstractmethod
    def synchronize(self, *, drain: bool = False) -> None:
        """Wait until the device has finished what it was given.

        With `drain`, also until every step has really been made, where a step may return before it is.
        """

    def seconds_between_steps(self) -> Sequence[float] | None:
        """From the end of each step to the end of the next, by the clock of the device, since the last call.

        Called after `synchronize`, with one fewer than the steps since then. None if the device does not report them.
        """
        return None

    def reset_peak_memory(self) -> None:  # noqa: B027  # not every device counts it
        """Forget how much device memory was held up to now; a device that is the host has nothing to forget."""

    @abstractmethod
    def state(self) -> TrainingState:
        """The training so far, on the host; all processes must call it, since it may take communication."""

    @abstractmethod
    def load_state(self, state: TrainingState) -> None:
        """Replace model and optimizer on every replica by those that a `state` returned, also by one of another mode.

        Raises:
            ValueError: the state is one of another model.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Wait until all processes are here."""

    @abstractmethod
    def teardown(self) -> None:
        """Leave the other processes in good order."""

    def profile(self, path: Path) -> AbstractContextManager[None]:
        """Write what happens inside as a trace in Chrome's format, which its viewer and Perfetto's open.

        Raises:
            RequestError: this backend keeps no traces.
        """
        raise RequestError(f"--profile-steps: received with {type(self).__name__}, which keeps no traces; leave it out")

    def describe(self) -> Description:
        """What a result says of this process's training; a subclass adds what it knows."""
        return description_of(self.config)


class Inspectable(Backend):
    """A backend whose arrays can be compared with another's: what only `dpcompare verify` calls."""

    @abstractmethod
    def activations(self, batch: DeviceBatch) -> dict[str, Array]:
        """The output of each layer that has tensors, for this process's rows in evaluation.

        By the layer's neutral name, in the order of the layers; features are (rows, height, width, channels).
        """


def require_planned(backend: Backend, process_rank: int) -> None:
    """Check that a framework sees the devices that were planned, after `Backend.setup`.

    Args:
        backend: of this process.
        process_rank: that the launcher has given to it.

    Raises:
        RuntimeError: it sees others.
    """
    config, topology = backend.config, backend.config.topology
    seen = (backend.process_rank, backend.num_processes, backend.num_replicas)
    planned = (process_rank, topology.num_processes, topology.num_replicas)
    if seen != planned:
        raise RuntimeError(
            f"{config.framework} {config.mode} sees (process_rank, num_processes, num_replicas) = {seen}, the plan "
            f"says {planned}; devices of the plan: {', '.join(config.cluster.devices)}"
        )
