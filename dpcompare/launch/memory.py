"""What a run needs of memory at least, estimated from its model before it starts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpcompare.config.optimizers import OPTIMIZERS
from dpcompare.config.run import RunConfig
from dpcompare.errors import RequestError
from dpcompare.models.architectures import model_of
from dpcompare.models.costs import values_kept
from dpcompare.models.state import is_statistic
from dpcompare.system.devices import free_gpu_memory
from dpcompare.system.processes import available_memory
from dpcompare.system.terminal_text import pluralize

NUM_CLASSES = 10
"""Of a dataset that is not prepared yet: the classifier is a small part of a model."""
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}
"""Of a feature in a precision; weights in bfloat16 stay in float32."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """Bytes that each device needs at least; libraries, workspaces and buckets come on top."""

    state: int
    """Weights, their gradients, and what the optimizer remembers of each."""
    features: int
    """What the forward pass keeps for the backward pass, if nothing is computed twice."""

    @property
    def total(self) -> int:
        return self.state + self.features


def need_of(config: RunConfig) -> Need | None:
    """What each device of a run needs at least; None for a model whose layers are not known."""
    workload, topology = config.workload, config.topology
    num_classes = NUM_CLASSES if config.inputs is None else config.inputs.num_classes
    kept = values_kept(workload.model, workload.image_size, num_classes)
    if kept is None:
        return None
    shapes = model_of(workload.model).shapes(workload.image_size, num_classes)
    parameters = sum(math.prod(shape) for name, shape in shapes.items() if not is_statistic(name))
    copies = 2 + len(OPTIMIZERS[workload.optimizer].slots)
    parts = config.stages * (topology.num_replicas if config.mode_row.shards_parameters else 1)
    images = -(-workload.global_batch_size // topology.num_replicas)
    if not config.mode_row.is_pipeline:  # which keeps the features of all its micro-batches
        images = -(-images // workload.accumulate)
    return Need(
        state=parameters * copies * max(4, BYTES[workload.precision]) // parts,
        features=kept * images * BYTES[workload.precision] // config.stages,
    )


def free_for_each(config: RunConfig) -> int | None:
    """Bytes that each device of a run may take; None if its machines are others, or a GPU does not say."""
    cluster = config.cluster
    if not cluster.simulated:
        return None
    if cluster.device_type == "gpu":
        free = free_gpu_memory(cluster.devices)
        return None if free is None else free // (cluster.num_devices if cluster.shared else 1)
    return available_memory() // cluster.num_devices


def require_memory(config: RunConfig) -> None:
    """Refuse a run whose weights, gradients and optimizer do not fit into the memory that is free.

    Raises:
        RequestError: it is such a run.
    """
    need, free = need_of(config), free_for_each(config)
    if need is not None and free is not None and need.state > free:
        raise RequestError(
            f"memory: received {config.workload.model} on {pluralize(config.cluster.num_devices, 'device')}, each of "
            f"which needs at least {_gigabytes(need.state)} for weights, gradients and {config.workload.optimizer} and "
            f"has {_gigabytes(free)} free; expected a smaller model, fewer simulated devices, or a mode that shards "
            "(fsdp, pipeline)"
        )


def memory_remark(config: RunConfig) -> str | None:
    """A line if a run will hardly fit into the memory that is free."""
    need, free = need_of(config), free_for_each(config)
    if need is None or free is None or need.total <= free:
        return None
    return (
        f"memory: at least {in_words(need)} for each device, of which {_gigabytes(free)} are free: the run will hardly "
        "fit; use a smaller --global-batch-size, or --accumulate"
    )


def in_words(need: Need) -> str:
    """`1.2 GB (0.4 GB of state, 0.8 GB of features)`."""
    parts = f"{_gigabytes(need.state)} of state, {_gigabytes(need.features)} of features"
    return f"{_gigabytes(need.total)} ({parts})"


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2g} GB" if num_bytes < 1e9 else f"{num_bytes / 1e9:.1f} GB"
