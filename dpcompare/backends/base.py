"""What the training loop calls on a backend, and nothing else."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from dpcompare.backends.constants import ADAM_BETAS, ADAM_EPSILON, BATCH_NORM_EPSILON, SGD_MOMENTUM
from dpcompare.config.run import Inputs, RunConfig
from dpcompare.data.batches import DeviceBatch, HostBatch
from dpcompare.errors import RequestError
from dpcompare.models.architectures import model_of
from dpcompare.models.custom import source_sha256
from dpcompare.system.devices import available_cores
from dpcompare.system.import_path import is_custom

State = dict[str, npt.NDArray[Any]]


def _allocator() -> str:
    """What hands out this process's memory: glibc as dpcompare sets it, or what somebody preloaded."""
    mapped = Path("/proc/self/maps").read_text()
    for other in ("jemalloc", "tcmalloc", "mimalloc"):
        if f"lib{other}" in mapped:
            return other
    return "glibc, keeps memory" if os.environ.get("MALLOC_MMAP_MAX_") == "0" else "glibc"


class Backend(ABC):
    """One framework's way of training on several devices.

    A backend reads no clock and writes no file. It is used in this order: `setup`, then any number of
    `train_step` and `evaluate_step` on batches that came through `feed`, then `teardown`.
    """

    process_rank: int = 0
    """Rank of this process among `num_processes`, from 0."""
    num_processes: int = 1
    is_server: bool = False
    """Whether this process only serves those that run the loop, from `setup` until it ends."""
    num_replicas: int = 1
    """Replicas over all processes, as the framework itself counts them after `setup`."""

    packages: ClassVar[tuple[str, ...]]
    """Modules whose versions belong into every result."""

    def __init__(self, config: RunConfig) -> None:
        if config.inputs is None:
            raise RequestError(
                "this config has no inputs yet; pass it through dpcompare.prepare_inputs(config) first, which "
                "prepares the dataset and the initial weights"
            )
        self.config = config
        self.workload = config.workload
        self.inputs: Inputs = config.inputs

    @property
    def data_parallel_rank(self) -> int:
        """Which part of every global batch this process reads, from 0; processes that make up one replica read the same."""
        return self.process_rank

    @property
    def data_parallel_size(self) -> int:
        """Parts into which a global batch is divided among the processes."""
        return self.num_processes

    @property
    def collective(self) -> str:
        """What carries the gradients between the replicas of this run."""
        row = self.config.mode_row
        if self.config.topology.num_replicas == 1 and not row.roles and row.split != "over processes":
            return "none"
        return self.config.mode_row.collective[self.config.cluster.device_type]

    def initial_state(self) -> State | None:
        """The tensors to start from: the file that all backends share. None keeps what the model was built with."""
        state: State = load_file(self.inputs.weights)
        return state

    @abstractmethod
    def setup(self) -> None:
        """Join the other processes and build the model, from the shared initial weights, and its optimizer."""

    @abstractmethod
    def feed(self, batches: Iterable[HostBatch]) -> Iterator[DeviceBatch]:
        """This process's host batches as device batches, prepared ahead of their use."""

    @abstractmethod
    def train_step(self, batches: Sequence[DeviceBatch], learning_rate: float) -> Any:
        """One optimizer step on the micro-batches of a global batch.

        Returns a handle of the sum of the losses of this process's samples; never waits for the device.
        """

    @abstractmethod
    def evaluate_step(self, batch: DeviceBatch) -> Any:
        """Returns a handle of (sum of losses, correct, count) over this process's samples."""

    @abstractmethod
    def logits(self, batch: DeviceBatch, *, training: bool) -> npt.NDArray[Any]:
        """The model's output for this process's rows, (rows, classes).

        With `training` BatchNorm normalises by the batch and updates its running statistics; all processes must call it.
        """

    def activations(self, batch: DeviceBatch) -> dict[str, npt.NDArray[Any]]:
        """What each layer with tensors of its own makes of this process's rows in evaluation, by its neutral name, in the order
        of the layers; features are (rows, height, width, channels)."""
        raise NotImplementedError(f"{type(self).__name__} does not tell what its layers make")

    @abstractmethod
    def to_host(self, batch: DeviceBatch) -> dict[str, npt.NDArray[Any]]:
        """images, labels, weights and any factors of this process's rows as they are on its devices, in a HostBatch's layout."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has finished what it was given."""

    def settle(self) -> None:  # noqa: B027 (most have nothing to wait for)
        """Wait until every step is made, where a step may return before it is."""

    @abstractmethod
    def read(self, handles: Sequence[Any]) -> npt.NDArray[np.float64]:
        """The values of several handles at once: one row per handle."""

    @abstractmethod
    def state(self) -> State:
        """The model's tensors by their framework-neutral names, BatchNorm statistics of replica 0 included.

        All processes must call it: those statistics are exchanged.
        """

    @abstractmethod
    def optimizer_state(self) -> State:
        """What the optimizer remembers, as `<slot>.<tensor>`: momentum, or exp_avg and exp_avg_sq."""

    @abstractmethod
    def load_state(self, state: State) -> None:
        """Replace the model's tensors on every replica; all names must be there."""

    @abstractmethod
    def load_optimizer_state(self, slots: State, steps_taken: int) -> None:
        """Replace what the optimizer remembers, by the names of `optimizer_state`, after so many steps."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until all processes are here."""

    @abstractmethod
    def teardown(self) -> None:
        """Leave the other processes in good order."""

    def profile(self, path: Path) -> AbstractContextManager[None]:
        """Write what happens inside as a trace in Chrome's format, which its viewer and Perfetto's open."""
        raise NotImplementedError(f"{type(self).__name__} keeps no traces")

    def settings(self) -> dict[str, Any]:
        """What a fair comparison must know of how this backend trains; a subclass that changes one says so here."""
        constants: dict[str, dict[str, Any]] = {
            "sgd": {"momentum": SGD_MOMENTUM},
            "adam": {"betas": ADAM_BETAS, "epsilon": ADAM_EPSILON},
        }
        own = is_custom(self.workload.model)
        return {
            "compilation": "none",
            **self.config.tuning,
            "optimizer": {"name": self.workload.optimizer, **constants[self.workload.optimizer]},
            "batchnorm_epsilon": "of the model" if own else BATCH_NORM_EPSILON,
            "model_source": source_sha256(self.workload.model) if own else "of dpcompare",
            "dropout": self._drop_rate("dropout"),
            "stochastic_depth": self._drop_rate("stochastic depth"),
            "tf32": self.workload.profile == "native",
            "convolution_algorithms": "measured" if self.config.cluster.device_type == "gpu" else "fixed",
            "input_threads": 1,
            "allocator": _allocator(),
            "cores": available_cores(),
        }

    def _drop_rate(self, kind: str) -> float:
        """The highest rate of a kind of regularization that this run trains with."""
        drops = model_of(self.workload.model).drops if self.workload.regularization == "shared" else ()
        return max((drop.rate for drop in drops if drop.kind == kind), default=0.0)

    def devices(self) -> list[str]:
        """Names of this process's devices, as the framework reports them."""
        return []

    def peak_device_memory_bytes(self) -> int | None:
        """Most device memory this process held at once; None where the device is the host itself."""
        return None
