"""What a JAX training step replaces, on the devices of all replicas, and on the host as the state of the training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, PartitionSpec

from dpcompare.backends.jax.arrays import REPLICATED, SHARDED, copies, on_host, replicate, shard
from dpcompare.backends.jax.optimizer import Optimizer, Slots, Tensors
from dpcompare.config.optimizers import FIRST_MOMENTS
from dpcompare.models.state import State, TrainingState, is_statistic
from dpcompare.system.type_names import Array


class TrainState(NamedTuple):
    """What a training step replaces. Where replicas may differ, tensors have an axis of replicas in front."""

    parameters: Tensors
    slots: Slots
    """Slot of the optimizer -> parameter -> what it remembers."""
    statistics: Tensors
    """BatchNorm's, of each replica; one of all if the step sees the whole batch."""
    optimizer_steps: jax.Array
    """Counted by each replica, as are the images whose losses it has computed."""
    images_computed: jax.Array

    @classmethod
    def empty(cls, mesh: Mesh) -> TrainState:
        """Without any tensor, and with counts from 0."""
        zeros = np.zeros(len(mesh.local_devices), np.int32)
        return cls({}, {}, {}, shard(mesh, zeros), shard(mesh, zeros))

    def with_state(
        self, state: TrainingState, mesh: Mesh, optimizer: Optimizer, dtype: npt.DTypeLike, of_step: PartitionSpec
    ) -> TrainState:
        """The tensors of a state on every replica; the counts continue from those so far.

        Args:
            state: from the host.
            mesh: the devices of all replicas.
            optimizer: whose slots are made where the state has none yet.
            dtype: of all tensors.
            of_step: the partition of what each step has for itself; see `partition_specs`.
        """
        tensors = {name: value.astype(dtype) for name, value in state.model.items()}
        parameters = {name: value for name, value in tensors.items() if not is_statistic(name)}
        statistics = {name: value for name, value in tensors.items() if is_statistic(name)}

        def remembered(slot: str, name: str) -> Array:
            # torch makes its slots in the first step.
            return state.optimizer[f"{slot}.{name}"].astype(dtype) if state.step else np.zeros_like(parameters[name])

        return self._replace(
            parameters={name: replicate(mesh, value) for name, value in parameters.items()},
            slots={
                slot: {name: replicate(mesh, remembered(slot, name)) for name in parameters} for slot in optimizer.slots
            },
            statistics={name: copies(mesh, value, of_step) for name, value in statistics.items()},
        )

    def model_on_host(self) -> State:
        """The model's tensors, those of the first replica here."""
        parameters = {name: on_host(value) for name, value in self.parameters.items()}
        return parameters | {name: on_host(value)[0] for name, value in self.statistics.items()}

    def slots_on_host(self) -> State:
        """What the optimizer remembers, as `<slot>.<tensor>`."""
        return {
            f"{slot}.{name}": on_host(value) for slot, values in self.slots.items() for name, value in values.items()
        }

    def copies_of_replicas(self) -> Iterator[tuple[str, Sequence[Array]]]:
        """Each parameter and what the optimizer remembers of it, as each replica of this process has it."""
        slots = {f"{slot}.{name}": value for slot, values in self.slots.items() for name, value in values.items()}
        for name, value in {**self.parameters, **slots}.items():
            yield name, [np.array(copy.data) for copy in value.addressable_shards]

    def first_grad_norm_sq(self) -> float:
        """The squared norm of the first gradient, summed over the replicas here: from what the optimizer remembers."""
        copies = [
            np.asarray(copy.data).astype(np.float64) / FIRST_MOMENTS[slot]
            for slot, values in self.slots.items()
            if slot in FIRST_MOMENTS
            for value in values.values()
            for copy in value.addressable_shards
        ]
        return float(sum(np.square(copy).sum() for copy in copies))


def partition_specs(of_step: PartitionSpec) -> TrainState:
    """The partition of each tensor of a training state.

    Args:
        of_step: of what each step has for itself: SHARDED if it is a replica's, REPLICATED if it is that of all.
    """
    specs: dict[str, Any] = {
        "parameters": REPLICATED,
        "slots": REPLICATED,
        "statistics": of_step,
        "optimizer_steps": SHARDED,
        "images_computed": SHARDED,
    }
    return TrainState(**specs)
